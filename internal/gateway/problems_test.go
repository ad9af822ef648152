package gateway

import "tidemill.dev/api"

// statusOf returns the status of a problem; 0 if there is none.
func statusOf(p *api.Problem) int {
	if p == nil {
		return 0
	}
	return p.Status
}
