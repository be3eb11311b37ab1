"""A trained model of answer lengths, on top of the histograms: reading it needs nothing beside Python."""
