package sim

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"tidemill.dev/e2e/sim/vnet"
	"tidemill.dev/internal/data/store/s3test"
)

const (
	bucketHost = "bucket"
	bucketPort = 9001
)

// troubles are what a bucket fault does. Real buckets do the same: one that fails over has no copy of
// some keys yet, and one that is busy asks its clients to slow down.
var troubles = []string{"slow", "absent", "absent", "busy", "silent", "unreachable"}

// planBucket makes the store of some clusters a bucket, to which people commit data.
func (p *plan) planBucket(r *rand.Rand) {
	if r.IntN(3) > 0 || p.up {
		return
	}
	between := func(least, most int) int { return least + r.IntN(most-least+1) }
	p.bucket, p.committers = true, between(1, 3)
	for range between(2, 6) {
		f := fault{at: time.Duration(r.Int64N(int64(p.load))), kind: "bucket", other: troubles[r.IntN(len(troubles))], lasts: time.Duration(between(500, 30_000)) * time.Millisecond, n: between(1, 4)}
		if f.other == "unreachable" {
			f.host = p.aim(r)
		}
		p.add(r, f)
	}
}

// bucket is an S3 server with troubles. Its data are in memory and survive all faults.
type bucket struct {
	w      *world
	host   *vnet.Host
	s3     *s3test.Server
	server *http.Server

	mu       sync.Mutex
	requests int
	troubles []trouble // also those that are over
}

// trouble is a fault and its end.
type trouble struct {
	fault
	until time.Time
}

func newBucket(w *world) *bucket {
	b := &bucket{w: w, host: w.net.Host(bucketHost), s3: s3test.New()}
	b.s3.Refuse = b.refuse
	l, err := b.host.Listen(w.ctx, "tcp", fmt.Sprint(":", bucketPort))
	if err != nil {
		w.t.Fatal(err)
	}
	b.server = &http.Server{Handler: b}
	w.running.Go(func() { _ = b.server.Serve(l) }) // ends by Close
	return b
}

// url returns the store's URL for Tidemill.
func (b *bucket) url() string {
	return fmt.Sprintf("s3://%s?prefix=sim/&endpoint=http://%s", s3test.Bucket, at(b.host, bucketPort))
}

// ServeHTTP answers by S3 and by the troubles of now. The answer goes to memory first, because S3 holds
// its lock meanwhile.
func (b *bucket) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	b.requests++
	number := b.requests
	b.mu.Unlock()
	isLost := false
	for _, one := range b.now() {
		x := chance(b.w.p.seed+uint64(one.at), r.Method+r.URL.Path, number)
		switch one.other {
		case "slow":
			wait(r.Context(), min(time.Until(one.until), time.Duration(x%30_000)*time.Millisecond))
		case "silent":
			isLost = isLost || int(x%5) < one.n
		}
	}
	answer := httptest.NewRecorder()
	b.s3.ServeHTTP(answer, r)
	if isLost {
		b.w.history.say("bucket: %s %s is answered %d, and the answer is lost", r.Method, r.URL.Path, answer.Code)
		panic(http.ErrAbortHandler)
	}
	for name, values := range answer.Header() {
		rw.Header()[name] = values
	}
	rw.WriteHeader(answer.Code)
	_, _ = rw.Write(answer.Body.Bytes()) // a client may have left
}

// now returns the troubles that are not over.
func (b *bucket) now() (all []trouble) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, one := range b.troubles {
		if time.Now().Before(one.until) {
			all = append(all, one)
		}
	}
	return all
}

// refuse returns the error that a request gets, and 0 if it gets none. The keys that are absent stay
// so until the end of the trouble.
func (b *bucket) refuse(r *http.Request) (status int, code string) {
	isRead := (r.Method == http.MethodGet || r.Method == http.MethodHead) && !strings.HasSuffix(r.URL.Path, "/")
	for _, one := range b.now() {
		switch {
		case one.other == "busy" && int(chance(b.w.p.seed, r.Method+r.URL.Path, b.count())%5) < one.n:
			status, code = http.StatusServiceUnavailable, "SlowDown"
		case one.other == "absent" && isRead && int(chance(b.w.p.seed, r.URL.Path, int(one.at))%5) < one.n:
			status, code = http.StatusNotFound, "NoSuchKey"
		case one.other == "away":
			status, code = http.StatusServiceUnavailable, "ServiceUnavailable"
		}
	}
	if status != 0 {
		b.w.history.say("bucket: %s %s is refused: %s", r.Method, r.URL.Path, code)
	}
	return status, code
}

func (b *bucket) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.requests
}

// trouble begins a fault of the bucket.
func (b *bucket) trouble(f fault) {
	if f.other == "unreachable" {
		b.w.do(fault{at: f.at, kind: "block", host: f.host, other: bucketHost, lasts: f.lasts, n: f.n})
		return
	}
	b.mu.Lock()
	b.troubles = append(b.troubles, trouble{f, time.Now().Add(f.lasts)})
	b.mu.Unlock()
	b.w.later(f.lasts, func() {})
}
