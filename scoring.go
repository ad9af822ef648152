package tidemill

// ScorerSwappedData is the data of tidemill.scorer.swapped: from where on a version of
// a model scores a partition. If it is said of several offsets, the lowest counts.
type ScorerSwappedData struct {
	Scorer    string `json:"scorer"`
	Stream    string `json:"stream"` // that is scored
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Before    int    `json:"before,omitempty"` // the version that scored until then, if it is known
}
