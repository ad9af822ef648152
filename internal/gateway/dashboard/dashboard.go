package dashboard

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"mime"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"tidemill.dev/internal/gateway/access"
)

// Options configure a Dashboard.
type Options struct {
	API     http.Handler // handler of the whole HTTP API
	Install func() string
	Version string
	Live    bool   // whether the API has /api/v1/live
	SignIn  SignIn // sign-in with an issuer; nil if the gateway has no access file
	Now     func() time.Time
	Logger  *slog.Logger
}

// Dashboard serves all pages, at / and below /ui/.
type Dashboard struct {
	opt    Options
	assets *assetFiles
	mux    *http.ServeMux

	regions   regionCache
	exchanges chan struct{} // full while mostExchanges people sign in
}

// New makes the dashboard.
func New(o Options) *Dashboard {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Dashboard{opt: o, assets: packAssets(), mux: http.NewServeMux(), exchanges: make(chan struct{}, mostExchanges)}
	d.mux.Handle("GET /ui/assets/{hash}/{name}", d.assets)
	for _, p := range pageTable() {
		handle := func(w http.ResponseWriter, r *http.Request) { d.servePage(w, r, p) }
		d.mux.HandleFunc("GET "+p.path, handle)
		if p.post {
			d.mux.HandleFunc("POST "+p.path, handle)
		}
	}
	d.mux.HandleFunc("GET /ui/auth", d.serveAuth)
	d.mux.HandleFunc("POST /ui/auth/token", d.serveToken)
	missing := missingPage()
	d.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { d.servePage(w, r, missing) })
	return d
}

// ServeHTTP answers a request for a page or an asset.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	d.mux.ServeHTTP(w, r)
}

// contentPolicy allows no script, style or frame except the files of the dashboard.
const contentPolicy = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"

// navGroup is a group of pages in the navigation.
type navGroup struct {
	Title   string
	Entries []navEntry
}

// navEntry is a page in the navigation. Keys are the two keys that open it.
type navEntry struct{ Title, Path, Keys string }

// navigation lists the pages, in groups.
func navigation() []navGroup {
	return []navGroup{
		{"Models", []navEntry{{"Fleet", "/", "g f"}, {"Models", "/ui/models", "g m"}, {"Trials", "/ui/trials", "g i"}, {"Rollouts", "/ui/rollouts", "g o"}, {"Scorers", "/ui/scorers", "g s"}, {"Approvals and commands", "/ui/approvals", "g a"}}},
		{"Training", []navEntry{{"Runs and pools", "/ui/runs", "g r"}, {"Data", "/ui/data", "g d"}, {"Lineage", "/ui/lineage", "g l"}}},
		{"Events", []navEntry{{"Streams", "/ui/streams", "g e"}, {"Triggers and schedules", "/ui/triggers", "g t"}, {"Dead letters", "/ui/dead-letters", "g x"}}},
		{"Install", []navEntry{{"Health", "/ui/health", "g h"}}},
	}
}

// pageTable lists all pages.
func pageTable() []*page {
	return slices.Concat(fleetPages(), runPages(), triggerPages(), letterPages(), streamPages(), searchPages(), actPages(), signInPages(), modelPages(), keyPages(), trialPages(), rolloutPages(), approvalPages(), scorerPages(), dataPages(), lineagePages(), healthPages())
}

// missingPage is the page of an address without a page.
func missingPage() *page {
	return &page{path: "/", title: named("There is no such page"), status: http.StatusNotFound, main: still(func(v *view) Node {
		return list(h.H1(say(v.Title)), h.P(say("No page has this address. The navigation lists all pages, and the search box finds keys, runs, models and names.")))
	})}
}

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

//go:embed assets
var assetSource embed.FS

// assetFiles are the scripts and styles. One hash over all of them is part of their paths, because
// the modules import each other by relative paths.
type assetFiles struct {
	hash  string
	files map[string]asset
}

type asset struct {
	media       string
	plain, gzip []byte
}

// packAssets reads the embedded files and compresses them, once in a process.
var packAssets = sync.OnceValue(func() *assetFiles {
	entries, _ := assetSource.ReadDir("assets") // embedded: cannot fail
	sum, a := sha256.New(), &assetFiles{files: map[string]asset{}}
	for _, e := range entries {
		data, _ := assetSource.ReadFile(path.Join("assets", e.Name()))
		sum.Write([]byte(e.Name() + "\n"))
		sum.Write(data)
		a.files[e.Name()] = asset{media: mediaOf(e.Name()), plain: data, gzip: zip(data, gzip.BestCompression)}
	}
	a.hash = hex.EncodeToString(sum.Sum(nil))[:16]
	return a
})

func mediaOf(name string) string {
	if strings.HasSuffix(name, ".js") {
		return "text/javascript; charset=utf-8"
	}
	return mime.TypeByExtension(path.Ext(name))
}

func zip(data []byte, level int) []byte {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, level) // the level is valid
	_, _ = z.Write(data)                   // a buffer takes everything
	_ = z.Close()
	return b.Bytes()
}

// url returns the path of an asset.
func (a *assetFiles) url(name string) string { return "/ui/assets/" + a.hash + "/" + name }

// ServeHTTP sends a file. Only the present hash may be cached for ever: during an upgrade a page of
// another version may ask this gateway.
func (a *assetFiles) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, ok := a.files[r.PathValue("name")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.media)
	h.Set("Vary", "Accept-Encoding")
	h.Set("Cache-Control", "no-cache")
	if r.PathValue("hash") == a.hash {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	body := f.plain
	if acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		body = f.gzip
	}
	_, _ = w.Write(body) // fails only if the caller has disconnected
}

func acceptsGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(part), ";")
		if name == "gzip" && strings.TrimSpace(weight) != "q=0" {
			return true
		}
	}
	return false
}
