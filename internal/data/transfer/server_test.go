package transfer

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	"tidemill.dev/api"
)

// depot is a server of objects like a gateway, with a store that signs URLs.
type depot struct {
	*httptest.Server
	mu       sync.Mutex
	objects  map[string][]byte
	requests []string // method and path
	strayed  int      // requests with the credential to the store, or without it to the gateway
	signed   bool     // whether objects are got by signed URLs
	trouble  func(http.ResponseWriter, *http.Request) bool
	asked    int
}

const token = "Bearer secret"

func newDepot(t testing.TB) *depot {
	t.Helper()
	d := &depot{objects: map[string][]byte{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /base/objects/missing", d.missing)
	mux.HandleFunc("POST /base/objects", d.putAll)
	mux.HandleFunc("POST /base/object", d.put)
	mux.HandleFunc("GET /base/object", d.get)
	mux.HandleFunc("GET /direct", d.get)
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.mu.Lock()
		d.requests = append(d.requests, r.Method+" "+r.URL.Path)
		if (r.Header.Get("Authorization") == token) == (r.URL.Path == "/direct") {
			d.strayed++
		}
		trouble := d.trouble
		d.mu.Unlock()
		if trouble == nil || !trouble(w, r) {
			mux.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(d.Close)
	return d
}

// twin returns a depot with the same objects that has received no request. Late requests of
// cancelled calls may still arrive at the first depot.
func (d *depot) twin(t testing.TB) *depot {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	other := newDepot(t)
	other.objects = maps.Clone(d.objects)
	return other
}

func (d *depot) client() *Client {
	return &Client{Base: d.URL + "/base", HTTP: d.Client(), Sign: func(r *http.Request) { r.Header.Set("Authorization", token) }}
}

func (d *depot) missing(w http.ResponseWriter, r *http.Request) {
	var ask, lack api.Missing
	if json.NewDecoder(r.Body).Decode(&ask) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked += len(ask.Objects)
	for _, o := range ask.Objects {
		if _, there := d.objects[o.Digest]; there {
			continue
		}
		lack.Objects = append(lack.Objects, o)
	}
	_ = json.NewEncoder(w).Encode(lack)
}

func (d *depot) keep(digest string, b []byte) bool {
	sum := sha256.Sum256(b)
	if hex.EncodeToString(sum[:]) != digest {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.objects[digest] = b
	return true
}

func (d *depot) put(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil || strconv.Itoa(len(b)) != r.FormValue("size") || !d.keep(r.FormValue("digest"), b) {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (d *depot) putAll(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Content-Type") != api.ObjectsType || r.ContentLength > 9<<20 {
		w.WriteHeader(http.StatusUnsupportedMediaType)
		return
	}
	for {
		var head [api.ObjectHead]byte
		if _, err := io.ReadFull(r.Body, head[:]); err == io.EOF {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		b := make([]byte, binary.BigEndian.Uint64(head[32:]))
		if _, err := io.ReadFull(r.Body, b); err != nil || !d.keep(hex.EncodeToString(head[:32]), b) {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
	}
}

func (d *depot) get(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	b, there := d.objects[r.FormValue("digest")]
	signed := d.signed && r.URL.Path != "/direct"
	d.mu.Unlock()
	switch {
	case !there:
		w.Header().Set("Content-Type", api.ProblemType)
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(api.Problem{Type: api.ProblemBase + "x", Detail: "it is not there"})
	case signed:
		http.Redirect(w, r, "/direct?digest="+r.FormValue("digest"), http.StatusTemporaryRedirect)
	default:
		_, _ = w.Write(b)
	}
}

func (d *depot) count(request string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.requests {
		if r == request {
			n++
		}
	}
	return n
}
