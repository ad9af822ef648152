package web

import (
	"fmt"
	"net/http"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/access"
	"tidemill.dev/internal/api"
)

// The problems of who asks for what.

func unauthenticated(detail string) *api.Problem {
	return problem(api.Unauthenticated, http.StatusUnauthorized, "who are you?", detail)
}

func forbidden(detail string) *api.Problem {
	return problem(api.Forbidden, http.StatusForbidden, "not allowed", detail)
}

func missingRole(name string, needed access.Role) *api.Problem {
	return forbidden(fmt.Sprintf("%q lacks the role %s: have it added where the token is listed", clip(name), needed))
}

func strangeHost(host string) *api.Problem {
	return forbidden(fmt.Sprintf("host %q: a door without tokens answers for localhost and loopback addresses only; start it with --access to have it answer for others", clip(host)))
}

func strangeOrigin(origin string) *api.Problem {
	return forbidden(fmt.Sprintf("a page of %q asks in a browser: a door without tokens takes nothing from pages of others; ask with --access and a token", clip(origin)))
}

// forbiddenEvent is the problem of an event that its caller may not publish.
func forbiddenEvent(err error) *api.Problem {
	p := forbidden(err.Error())
	p.Attribute = attributeOf(err)
	return p
}

func forgedSignature(as, name string) *api.Problem {
	p := forbidden(fmt.Sprintf("authid is %q, but you are %q: leave it out", clip(as), name))
	p.Attribute = tidemill.AttrAuthID
	return p
}

func reserved(detail string) *api.Problem {
	return problem(api.Reserved, http.StatusForbidden, "only Tidemill itself may do that", detail)
}

func reservedStream(stream string) *api.Problem {
	return reserved(fmt.Sprintf("stream %s is written by Tidemill alone: publish to events or to a stream of your config", stream))
}

func reservedEvent(v *broker.View, err error) *api.Problem {
	p := reserved(err.Error())
	p.Attribute = "source"
	if tidemill.ReservedType(v.Type) {
		p.Attribute = "type"
	}
	return p
}
