-- Every request of wrk is an empty POST: one increment.
wrk.method = "POST"
