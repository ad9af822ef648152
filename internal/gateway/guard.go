package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/access"
)

// Check refuses of where a door is to be what Open would refuse, so that nothing
// else need have been opened by then.
func Check(listen, certFile, keyFile string, guarded bool) error {
	if err := checkOpen(listen, guarded); err != nil {
		return err
	}
	if certFile == "" && keyFile == "" {
		return nil
	}
	_, err := openCertificate(certFile, keyFile)
	return err
}

// checkOpen refuses to open a door without tokens to anyone but this machine.
func checkOpen(listen string, guarded bool) error {
	at, err := net.ResolveTCPAddr("tcp", listen)
	if err != nil {
		return fmt.Errorf("listen for HTTP on %q: %w; write it as host:port", listen, err)
	}
	if guarded || at.IP.IsLoopback() {
		return nil
	}
	return fmt.Errorf("listen for HTTP on %q: that is not a loopback address, and without tokens whoever reaches it can publish and read everything: "+
		"make a token with `tidemill token new` and name its file with --access, or listen on 127.0.0.1", listen)
}

// admit finds out who asks and whether the route is for them.
func (g *Gateway) admit(w http.ResponseWriter, r *request, needed access.Role) *api.Problem {
	if isOfAttempt(needed) {
		return g.admitAttempt(w, r, needed)
	}
	if g.opt.Access == nil {
		return g.admitOpen(r)
	}
	if needed == anyone {
		return nil
	}
	if p := g.identify(w, r); p != nil {
		g.metrics.refused.token.Inc()
		return p
	}
	if needed != known && !r.caller.Has(needed) {
		g.metrics.refused.role.Inc()
		return missingRole(r.caller.Name(), needed)
	}
	return nil
}

// admitOpen lets everyone on this machine in. A page on the web could have its
// own name point to this machine and a browser here ask us in its name; the
// host is then that name. Or it could have the browser post to us under our own
// name, and care nothing for the answer: to pause a trigger or to drop letters
// takes no more than a form does. The browser says then where the page is from.
func (g *Gateway) admitOpen(r *request) *api.Problem {
	if !isLoopback(r.Host) {
		g.metrics.refused.host.Inc()
		return strangeHost(r.Host)
	}
	if g.crossOrigin.Check(r.Request) != nil {
		g.metrics.refused.host.Inc()
		return strangeOrigin(r.Header.Get("Origin"))
	}
	r.caller = g.everyone
	return nil
}

func isLoopback(hostport string) bool {
	host := hostport
	if strings.Contains(host, ":") {
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return err == nil && ip.IsLoopback()
}

// challenge is what a request without a good token is told to come with.
const challenge = `Bearer realm="tidemill"`

// identify asks the guard who the caller is.
func (g *Gateway) identify(w http.ResponseWriter, r *request) *api.Problem {
	caller, err := g.opt.Access.Caller(r.Context(), r.Header.Get("Authorization"))
	switch {
	case err == nil:
		r.caller = caller
		return nil
	case errors.Is(err, access.ErrIssuerAway):
		// Why is for readers of /readyz: it names servers, and this caller may be anybody.
		return unavailable(access.ErrIssuerAway.Error() + ": send it again a little later")
	case errors.Is(err, access.ErrNoToken):
		w.Header().Set("WWW-Authenticate", challenge)
	default:
		w.Header().Set("WWW-Authenticate", challenge+`, error="invalid_token"`)
	}
	return unauthenticated(err.Error())
}
