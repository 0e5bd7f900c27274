"""What only the operator's commands do in the directory: lost cells, adopted databases, purges and reports."""
