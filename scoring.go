package tidemill

// ScorerSwappedData is the data of tidemill.scorer.swapped: a version of a model scores a
// partition from an offset on. Of several such events, the one with the lowest offset counts.
type ScorerSwappedData struct {
	Scorer    string `json:"scorer"`
	Stream    string `json:"stream"` // stream of the events that are scored
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Before    int    `json:"before,omitempty"` // version that scored until then, if it is known
}
