package gateway

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/data/store"
)

// dataDoors are gateways with a store of each kind.
type dataDoors struct{ open, guarded, narrow, slow, none, broken string }

func openDataDoors(t testing.TB, d *testGateways) *dataDoors {
	t.Helper()
	have := withStore(t, &commitRecorder{})
	also := func(change func(*Options)) string {
		return "http://" + d.world.openGateway(d.runs.with(func(o *Options) { have(o); change(o) })).Addr()
	}
	r, _ := tokenLine("reader", "r", "role: read")
	p, _ := tokenLine("publisher", "p", "role: publish")
	op, _ := tokenLine("operator", "o", "role: operate")
	access := func(o *Options) { o.Access = openGuard(t, "version: 1\ntokens:\n"+r+p+op) }
	dir := t.TempDir()
	s := must1(store.Open(t.Context(), store.Options{URL: dir}))(t)
	d.must(os.RemoveAll(dir))
	d.must(os.WriteFile(dir, nil, 0o600))
	hasty := func(o *Options) {
		access(o)
		o.Limits.ReadHeader, o.Limits.BodyGrace = 2*time.Second, 200*time.Millisecond
	}
	return &dataDoors{open: also(func(*Options) {}), guarded: also(access), none: d.busy,
		broken: also(func(o *Options) { o.Store = s }),
		slow:   also(hasty),
		narrow: also(func(o *Options) {
			access(o)
			o.Limits.Headers, o.Limits.Caller = 8<<10, 16<<10
		})}
}

// dataAsk is a successful request about data.
type dataAsk struct {
	method, path, body string
	status             int
	most               int  // maximum bytes of its body
	streams            bool // the body has no limit as a whole
}

// dataAsks get every documented answer about data.
func (d *testGateways) dataAsks(long, stranger []string) (all []gatewayRequest) {
	a := openDataDoors(d.TB, d)
	w := &world{TB: d.TB, url: a.open}
	first := w.committed(api.CommitAsked{Dataset: "d"}, map[string]string{"a": "A"})
	change := fmt.Sprintf(`{"path":"a","digest":"%s","size":1}`, digestOf("A"))
	objects := []string{"Content-Type", api.ObjectsType}
	for _, q := range []dataAsk{
		{"POST", "objects/missing", `{"objects":[{"digest":"` + digestOf("A") + `","size":1}]}`, 200, mostMissing, false},
		{"POST", "objects", framesOf("A"), 204, mostBatchBody, false},
		{"POST", objectPath("A")[len(dataPath):], "A", 204, 0, true},
		{"POST", "commits", `{"dataset":"d"}` + "\n" + change, 200, 0, true},
		{"POST", "branches", `{"dataset":"d","branch":"b","from":"` + first.ID + `"}`, 200, maxCommandBody, false},
		{"POST", "gc", `{"dryRun":true}`, 200, maxCommandBody, false},
		{"GET", getPath("A")[len(dataPath):], "", 200, 0, true},
		{"GET", "datasets", "", 200, 0, false},
		{"GET", "files?dataset=d", "", 200, 0, false},
		{"GET", "file?dataset=d&path=a", "", 200, 0, true},
		{"GET", "log?dataset=d", "", 200, 0, false},
		{"GET", "diff?dataset=d", "", 200, 0, false},
		{"GET", "commit?dataset=d", "", 200, 0, false},
	} {
		path, role, less := dataPath+q.path, d.reader, d.publisher
		headers := func(of ...string) []string {
			if q.path == "objects" {
				of = append(of, objects...)
			}
			return of
		}
		if q.method == http.MethodPost {
			role, less = d.operator, d.reader
		}
		all = append(all, gatewayRequest{a.open, q.method, path, q.body, headers(), q.status}, gatewayRequest{a.guarded, q.method, path, q.body, headers(role...), q.status},
			gatewayRequest{a.guarded, q.method, path, q.body, headers(less...), 403}, gatewayRequest{a.guarded, q.method, path, q.body, headers(), 401},
			gatewayRequest{a.open, q.method, path, q.body, headers(stranger...), 403}, gatewayRequest{a.narrow, q.method, path, q.body, headers(append(long, role...)...), 431},
			gatewayRequest{a.none, q.method, path, q.body, headers(), 404}, gatewayRequest{a.broken, q.method, path, q.body, headers(), 503})
		if q.streams {
			all = append(all, gatewayRequest{a.narrow, q.method, path, q.body, headers(role...), 429})
		}
		if q.method == http.MethodGet {
			all = append(all, gatewayRequest{a.open, "GET", path + sep(path) + "x=1", "", nil, 400})
			continue
		}
		all = append(all, gatewayRequest{a.open, "POST", path, "{", headers(), 400})
		if q.most > 0 {
			all = append(all, gatewayRequest{a.open, "POST", path, strings.Repeat(" ", q.most+1), headers(), 413},
				gatewayRequest{a.narrow, "POST", path, strings.Repeat(" ", 100<<10), headers(role...), 429})
		}
		all = append(all, gatewayRequest{a.slow, "POST", path, strings.Repeat(" ", max(len(q.body), 1)), headers(role...), 408})
	}
	return append(all, gatewayRequest{a.open, "POST", dataPath + "commits", `{"dataset":"d","dryRun":true}` + "\n" + change, nil, 204},
		gatewayRequest{a.open, "POST", dataPath + "commits", strings.Repeat(" ", mostCommit+1), nil, 413},
		gatewayRequest{a.open, "POST", dataPath + "objects", "x", nil, 415},
		gatewayRequest{a.open, "POST", dataPath + "branches", `{"dataset":"d","branch":"main"}`, nil, 409})
}

func sep(path string) string {
	if strings.Contains(path, "?") {
		return "&"
	}
	return "?"
}
