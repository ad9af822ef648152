package web

import (
	"net/http"

	"tidemill.dev/internal/access"
)

// The roles of the agents' door. None is a caller's: only the token of the
// attempt that the path names opens it, and that token opens nothing else.
const (
	ofAttempt        access.Role = "attempt"         // the ledger is asked whether it is still under way
	ofAttemptLately  access.Role = "attempt, lately" // what the ledger said a moment ago will do
	ofAttemptForever access.Role = "attempt, ended"  // it may have ended
)

func isOfAttempt(r access.Role) bool {
	return r == ofAttempt || r == ofAttemptLately || r == ofAttemptForever
}

const agentsDoor = "/agent/v1/attempts/{attempt}"

// agentTable is what agents ask for. What an attempt leaves behind under its
// run's name, its order among it, is asked for with ofAttempt; what only reads,
// or puts objects that nothing names yet, with ofAttemptLately: a mistake of a
// moment changes nothing there.
func (g *Gateway) agentTable() []route {
	return []route{
		{method: http.MethodGet, path: agentsDoor, role: ofAttempt, handle: g.agentOrder},
		{method: http.MethodGet, path: agentsDoor + "/events", role: ofAttemptLately, handle: g.agentEvents},
		{method: http.MethodGet, path: agentsDoor + "/files", role: ofAttemptLately, handle: g.agentFiles},
		{method: http.MethodPost, path: agentsDoor + "/objects/missing", role: ofAttemptLately, handle: g.missingObjects},
		{method: http.MethodPost, path: agentsDoor + "/objects", role: ofAttemptLately, handle: g.putObjects},
		{method: http.MethodPost, path: agentsDoor + "/object", role: ofAttemptLately, handle: g.putObject},
		{method: http.MethodGet, path: agentsDoor + "/object", role: ofAttemptLately, handle: g.getObject},
		{method: http.MethodPost, path: agentsDoor + "/beat", role: ofAttempt, handle: g.agentBeat},
		{method: http.MethodPost, path: agentsDoor + "/progress", role: ofAttemptLately, handle: g.agentProgress},
		{method: http.MethodPost, path: agentsDoor + "/log", role: ofAttempt, handle: g.agentLog},
		{method: http.MethodPost, path: agentsDoor + "/checkpoint", role: ofAttempt, handle: g.agentCheckpoint},
		{method: http.MethodPost, path: agentsDoor + "/finish", role: ofAttemptForever, handle: g.agentFinish},
		{method: http.MethodPost, path: agentsDoor + "/next", role: ofAttemptForever, handle: g.agentNext},
	}
}
