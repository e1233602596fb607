"""The paper's figures and analysis tables, one file each."""
