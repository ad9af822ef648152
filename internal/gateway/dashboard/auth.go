package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"tidemill.dev/internal/gateway/access"
)

// SignIn gets tokens of an issuer for people. An [access.Guard] is one.
type SignIn interface {
	SignIn(ctx context.Context) (access.SignIn, error)
	Exchange(ctx context.Context, code, verifier, redirect string) (token string, err error)
}

var _ SignIn = (*access.Guard)(nil)

// signInPages has the page to which the issuer sends the person back.
func signInPages() []*page {
	return []*page{{path: callbackPath, title: named("Sign in"), redirect: func(*visit) string { return "/" }, main: still(func(*view) Node { return showSignIn() })}}
}

// showSignIn is the form for the token, which the script makes.
func showSignIn() Node {
	return list(h.H1(say("Sign in")), g.El("tm-sign-in", h.P(say("This gateway has an access file, so each request needs a token.")),
		h.NoScript(nothing(say("The token is kept for this tab alone, which needs JavaScript. Without JavaScript, use the command line: set "), h.Code(say("TIDEMILL_TOKEN")), say(" and "), h.Code(say("TIDEMILL_URL")), say(".")))))
}

const callbackPath = "/ui/auth/callback"

// maxCode limits the form of an exchange.
const maxCode = 16 << 10

// serveAuth says which kinds of sign-in exist. Everyone may ask, because a person who asks has no
// token yet.
func (d *Dashboard) serveAuth(w http.ResponseWriter, r *http.Request) {
	var answer struct {
		Token bool           `json:"token"`           // whether a token is needed
		OIDC  *access.SignIn `json:"oidc"`            // sign-in with an issuer; null if there is none
		Fault string         `json:"fault,omitempty"` // reason why the issuer cannot be used now
	}
	if d.opt.SignIn != nil {
		answer.Token = true
		if to, err := d.opt.SignIn.SignIn(r.Context()); err == nil {
			answer.OIDC = &to
		} else if !errors.Is(err, access.ErrNoSignIn) {
			answer.Fault = access.ErrIssuerAway.Error() // the details name servers
		}
	}
	writeAuth(w, http.StatusOK, answer)
}

// serveToken exchanges the code of an issuer for a token.
func (d *Dashboard) serveToken(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxCode)
	if d.opt.SignIn == nil || r.ParseForm() != nil {
		writeAuth(w, http.StatusBadRequest, map[string]string{"detail": "this gateway needs no token, or the form is invalid"})
		return
	}
	select {
	case d.exchanges <- struct{}{}:
		defer func() { <-d.exchanges }()
	default:
		writeAuth(w, http.StatusTooManyRequests, map[string]string{"detail": "too many people sign in at this moment: try again"})
		return
	}
	token, err := d.opt.SignIn.Exchange(r.Context(), r.PostForm.Get("code"), r.PostForm.Get("verifier"), r.PostForm.Get("redirect"))
	if err != nil {
		d.opt.Logger.Info("dashboard: a sign-in failed; the person is asked again", "reason", err)
		writeAuth(w, http.StatusForbidden, map[string]string{"detail": "the issuer or this gateway refuses the sign-in; the gateway's log has the reason"})
		return
	}
	writeAuth(w, http.StatusOK, map[string]string{"token": token})
}

// mostExchanges limits the requests to the issuer that callers without a token can cause.
const mostExchanges = 4

func writeAuth(w http.ResponseWriter, status int, body any) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // fails only if the caller has disconnected
}
