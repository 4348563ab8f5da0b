"""Studies: arms x models x seeds as one table, with every common stage made once."""
