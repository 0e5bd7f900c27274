"""The vocabulary that every other room speaks. Standard library only; imports no other room."""
