"""Pictures in, labels out: labelling without labels, what a person should look at, and how sure one can be."""
