package warm

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"time"

	"tidemill.dev"
)

// Shape tells plans apart that cannot follow each other in a pod: its pool, team,
// image, user, resources, grace, secrets and volumes are the pod's and not the
// attempt's. It is empty for a plan whose pods are of no use to another: those of
// several workers are bound to each other.
func Shape(p tidemill.Plan) string {
	if p.Workers > 1 || p.Servers != nil || p.Image == "" {
		return ""
	}
	text, err := json.Marshal(struct {
		Team, Image, Pool string
		CPU               float64
		Memory            int64
		GPUs              int
		Grace             time.Duration
		Secrets           map[string]string
		Inside            tidemill.Inside
	}{p.Team, p.Image, p.Pool, p.CPU, p.Memory, p.GPUs, p.Grace, p.Secrets, p.Inside})
	if err != nil {
		return "" // no number of a plan is one that JSON does not know
	}
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:18])
}
