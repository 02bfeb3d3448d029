"""Stand-ins for packages that receive weights, with the signatures of the published ones."""
