package dashboard

import (
	"log/slog"
	"net/http"
	"time"
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
