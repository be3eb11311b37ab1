"""The simulator's engine as a server in real time, to try Fairlane and to load it without a GPU."""
