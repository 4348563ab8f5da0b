"""Search backends, one a file: each plans a job as steps of units (`pipeline.mining.backends` names them)."""
