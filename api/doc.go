// Package api has the paths of the gateway's HTTP API and the types of its JSON. The
// gateway and its clients both import it, so it has no behaviour. openapi.json describes
// the same API for other programs.
package api
