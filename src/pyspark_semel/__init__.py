"""Where Spark looks for the format "semel"; its source arrives with the Spark step."""
