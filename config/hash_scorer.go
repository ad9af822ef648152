package config

type hashedScorer struct {
	Name        string            `json:"name"`
	From        string            `json:"from"`
	To          string            `json:"to"`
	Types       []string          `json:"types,omitempty"`
	Key         string            `json:"key"`
	Model       string            `json:"model"`
	Map         map[string]string `json:"map,omitempty"`
	NoModel     string            `json:"noModel"`
	Instead     string            `json:"instead,omitempty"`
	AtLeastOnce bool              `json:"atLeastOnce,omitempty"`
	Latest      bool              `json:"latest,omitempty"`
	Hold        string            `json:"hold"`
	MaxBatch    int               `json:"maxBatch"`
	Engine      string            `json:"engine,omitempty"` // empty is the default
	Top         int               `json:"top,omitempty"`
	Replicas    *hashedReplicas   `json:"replicas,omitempty"` // nil is the default
}

type hashedReplicas struct {
	Min  int    `json:"min,omitempty"`
	Max  int    `json:"max"`
	Lag  int64  `json:"lag"`
	Idle string `json:"idle"`
}

// hashed covers a scorer that reads a stream of so many partitions.
func (s Scorer) hashed(partitions int) hashedScorer {
	h := hashedScorer{Name: s.Name, From: s.From, To: s.To, Types: s.Types, Key: s.Key, Model: s.Model,
		NoModel: string(s.NoModel.Action), Instead: s.NoModel.Model, AtLeastOnce: s.AtLeastOnce, Latest: s.Latest,
		Hold: showSpan(s.Hold), MaxBatch: s.MaxBatch, Top: s.Top}
	if s.Engine != engineAuto {
		h.Engine = s.Engine
	}
	if r := s.Replicas; r != defaultReplicas(partitions) {
		h.Replicas = &hashedReplicas{r.Min, r.Max, r.Lag, showSpan(r.Idle)}
	}
	if len(s.Map) > 0 {
		h.Map = make(map[string]string, len(s.Map))
		for _, m := range s.Map {
			h.Map[m.Input] = m.Path
		}
	}
	return h
}
