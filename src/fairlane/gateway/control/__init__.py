"""The limits of engines that find themselves, live: what is counted of the answers, and the tick of the controllers."""
