"""Policies that order the classes of a pool: one file each, all behind `fairlane.core.protocols.ClassOrder`."""
