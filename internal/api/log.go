package api

// HeaderAttempt is a header of the answer to GET /api/v1/runs/{run}/log: the
// number of the attempt whose log it begins with. Whoever was cut off comes back
// with that attempt, and with skip, the bytes that have come.
const HeaderAttempt = "Tidemill-Attempt"
