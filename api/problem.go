package api

// ProblemType is the media type of a Problem.
const ProblemType = "application/problem+json"

// Problem is the body of every failure, as RFC 9457 defines it.
type Problem struct {
	Type   string `json:"type"`   // type: ProblemBase and a slug
	Title  string `json:"title"`  // title of all problems of the type
	Status int    `json:"status"` // status of HTTP
	Detail string `json:"detail"` // failure, its object, and the next step

	Attribute string   `json:"attribute,omitempty"` // invalid attribute of the event
	Streams   []string `json:"streams,omitempty"`   // existing streams, if the stream is unknown
	Events    []Answer `json:"events,omitempty"`    // answers to the events of a batch
}

// ProblemBase is the prefix of the type of every problem.
const ProblemBase = "https://tidemill.dev/problems/"

// The slugs.
const (
	InvalidEvent     = "invalid-event"          // 400: not a CloudEvent, or a CloudEvent that cannot be stored
	InvalidRequest   = "invalid-request"        // 400: invalid parameter
	Refused          = "refused"                // 400, 429 or 503: some events of a batch were refused
	Unauthenticated  = "unauthenticated"        // 401
	Forbidden        = "forbidden"              // 403
	Reserved         = "reserved"               // 403: type, source or stream of Tidemill itself
	UnknownStream    = "unknown-stream"         // 404
	UnknownTrigger   = "unknown-trigger"        // 404
	UnknownLetter    = "unknown-dead-letter"    // 404
	UnknownSchedule  = "unknown-schedule"       // 404
	UnknownScorer    = "unknown-scorer"         // 404
	UnknownData      = "unknown-data"           // 404: object, dataset, branch, commit or file
	UnknownRun       = "unknown-run"            // 404
	UnknownRecipe    = "unknown-recipe"         // 404
	UnknownPool      = "unknown-pool"           // 404
	UnknownModel     = "unknown-model"          // 404: model or version
	NoRuns           = "no-runs"                // 501: this gateway has no runs
	NoScoring        = "no-scoring"             // 501: this gateway cannot score
	NotFound         = "not-found"              // 404: unknown path
	MethodNotAllowed = "method-not-allowed"     // 405
	Conflict         = "conflict"               // 409: another object of this name exists
	Superseded       = "superseded"             // 409: the attempt is not the current one of its run
	NotPromoted      = "not-promoted"           // 409: the log refuses the promotion
	ChampionMoved    = "champion-moved"         // 409: the champion has changed since the caller read it
	TooSlow          = "too-slow"               // 408: the body did not come in time
	TooLarge         = "too-large"              // 413
	UnsupportedType  = "unsupported-media-type" // 415
	Unscorable       = "unscorable"             // 422: the event lacks inputs of the model, or the model cannot be loaded
	TooManyRequests  = "too-many-requests"      // 429: this caller has too many open requests
	HeadersTooLarge  = "headers-too-large"      // 431
	Internal         = "internal"               // 500: error of the gateway
	Unavailable      = "unavailable"            // 503: nothing was stored
	LedgerStopped    = "ledger-stopped"         // 503: a person must act first, as the detail says
	DiskFull         = "disk-full"              // 507: nothing was stored, and a retry is useless until there is room
	InDoubt          = "in-doubt"               // 503: it may have been stored; publish it again under the same id
)

// Error returns the problem's detail, so that a client can return the problem as an error.
func (p *Problem) Error() string {
	if p.Detail == "" {
		return p.Title
	}
	return p.Detail
}

// Status is the state of a dependency of the process.
type Status string

// The statuses. Only Failed makes the process not ready. A refused config is Degraded, because the
// previous one stays in force: an error in a file must not take every replica out of service.
const (
	OK       Status = "ok"
	Degraded Status = "degraded"
	Failed   Status = "failed"
)

// Readiness is the body of /readyz: the state of every dependency.
type Readiness struct {
	Status Status  `json:"status"` // worst status of the checks
	Checks []Check `json:"checks"`
}

// Check is the state of one dependency of the process.
type Check struct {
	Name   string `json:"name"` // name: kafka, redis, streams, config, access, door or, on a laptop, disk
	Status Status `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// Caller is the body of GET /api/v1/caller: the caller of the request, and its rights.
type Caller struct {
	Name    string   `json:"name,omitempty"`    // authid of the caller; empty without an access file
	Roles   []string `json:"roles"`             // roles that the caller has for at least some keys
	Limited bool     `json:"limited,omitempty"` // whether some of the roles are limited to some keys
}
