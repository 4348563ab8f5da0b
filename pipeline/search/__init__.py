"""Search backends. Each plans a job as steps of units; `aoq.pipeline.search.backends` names them."""
