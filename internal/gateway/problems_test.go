package gateway

import "tidemill.dev/api"

// statusOf is 0 where there is no problem.
func statusOf(p *api.Problem) int {
	if p == nil {
		return 0
	}
	return p.Status
}
