package api

// Status is how something is that the process depends on.
type Status string

// The statuses. Only what has failed makes the process not ready: a config that
// is refused leaves the one before in force, and taking every replica out of
// service for a slip in a file would turn the slip into an outage.
const (
	OK       Status = "ok"
	Degraded Status = "degraded"
	Failed   Status = "failed"
)

// Readiness is the body of /readyz: every dependency as it is now.
type Readiness struct {
	Status Status  `json:"status"` // the worst of the checks
	Checks []Check `json:"checks"`
}

// Check is one thing that the process depends on.
type Check struct {
	Name   string `json:"name"` // kafka, redis, streams, config, access, door or, on a laptop, disk
	Status Status `json:"status"`
	Detail string `json:"detail,omitempty"`
}
