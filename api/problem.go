package api

// ProblemType is the media type of a Problem.
const ProblemType = "application/problem+json"

// Problem is every answer that is not a success, as RFC 9457 has it.
type Problem struct {
	Type   string `json:"type"`   // ProblemBase and a slug
	Title  string `json:"title"`  // the same for every problem of a type
	Status int    `json:"status"` // the HTTP status
	Detail string `json:"detail"` // what failed, on what, and what to do next

	Attribute string   `json:"attribute,omitempty"` // of the event, that is at fault
	Streams   []string `json:"streams,omitempty"`   // those that there are, where one is unknown
	Events    []Answer `json:"events,omitempty"`    // of a batch, one an event
}

// ProblemBase begins the type of every problem.
const ProblemBase = "https://tidemill.dev/problems/"

// The slugs.
const (
	InvalidEvent     = "invalid-event"          // 400: no CloudEvent, or one that cannot be carried
	InvalidRequest   = "invalid-request"        // 400: a parameter
	Refused          = "refused"                // 400, 429 or 503: some events of a batch were
	Unauthenticated  = "unauthenticated"        // 401
	Forbidden        = "forbidden"              // 403
	Reserved         = "reserved"               // 403: a type, source or stream of Tidemill's own
	UnknownStream    = "unknown-stream"         // 404
	UnknownTrigger   = "unknown-trigger"        // 404
	UnknownLetter    = "unknown-dead-letter"    // 404
	UnknownSchedule  = "unknown-schedule"       // 404
	UnknownScorer    = "unknown-scorer"         // 404
	UnknownData      = "unknown-data"           // 404: an object, dataset, branch, commit or file
	UnknownRun       = "unknown-run"            // 404
	UnknownRecipe    = "unknown-recipe"         // 404
	UnknownPool      = "unknown-pool"           // 404
	UnknownModel     = "unknown-model"          // 404: a model or a version of it
	NoRuns           = "no-runs"                // 501: this gateway has none
	NoScoring        = "no-scoring"             // 501: this gateway has nothing to score with
	NotFound         = "not-found"              // 404: a path
	MethodNotAllowed = "method-not-allowed"     // 405
	Conflict         = "conflict"               // 409: it is there already, and is another
	Superseded       = "superseded"             // 409: an attempt that is no longer the one under way
	NotPromoted      = "not-promoted"           // 409: the log refuses it
	ChampionMoved    = "champion-moved"         // 409: it is not the champion that was seen
	TooSlow          = "too-slow"               // 408: the body did not come in time
	TooLarge         = "too-large"              // 413
	UnsupportedType  = "unsupported-media-type" // 415
	Unscorable       = "unscorable"             // 422: the event does not have what the model wants
	TooManyRequests  = "too-many-requests"      // 429: this caller has too much under way
	HeadersTooLarge  = "headers-too-large"      // 431
	Internal         = "internal"               // 500: a fault of ours
	Unavailable      = "unavailable"            // 503: nothing was stored
	InDoubt          = "in-doubt"               // 503: it may have been stored; publish it again under the same id
)

// Error is the problem's detail, so that a client can return it.
func (p *Problem) Error() string {
	if p.Detail == "" {
		return p.Title
	}
	return p.Detail
}

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
