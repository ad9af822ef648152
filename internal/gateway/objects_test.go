package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/data/store"
)

func objectPath(text string) string {
	return fmt.Sprintf("%sobject?digest=%s&size=%d", dataPath, digestOf(text), len(text))
}

func getPath(text string) string { return dataPath + "object?digest=" + digestOf(text) }

func TestObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withStore(t, &commitRecorder{}))
	large := strings.Repeat("large ", 1<<20)
	if r := w.post(objectPath(large), large); r.StatusCode != http.StatusNoContent {
		t.Errorf("%s %s", r.Status, r.body)
	}
	if r := w.post(dataPath+"objects", framesOf("a", "", "bc"), "Content-Type", api.ObjectsType); r.StatusCode != http.StatusNoContent {
		t.Errorf("%s %s", r.Status, r.body)
	}
	for _, text := range []string{large, "a", "", "bc"} {
		r := w.do(http.MethodGet, getPath(text), "")
		if r.StatusCode != http.StatusOK || r.body != text || r.ContentLength != int64(len(text)) {
			t.Errorf("%s, %d bytes", r.Status, len(r.body))
		}
	}
	part := func(text string) string { return fmt.Sprintf(`{"digest":"%s","size":%d}`, digestOf(text), len(text)) }
	r := w.post(dataPath+"objects/missing", `{"objects":[`+part("a")+`,`+part("none")+`,`+part("bc")+`]}`)
	if want := `{"objects":[` + part("none") + `]}`; strings.TrimSpace(r.body) != want {
		t.Errorf("%s %s, want %s", r.Status, r.body, want)
	}
}

func TestBadObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withStore(t, &commitRecorder{}))
	bad := func(r reply, says string) {
		t.Helper()
		wantProblem(t, r, http.StatusBadRequest, api.InvalidRequest, says)
	}
	batch := []string{"Content-Type", api.ObjectsType}
	bad(w.post(strings.Replace(objectPath("a"), "size=1", "size=2", 1), "a"), "size: it is 2, and the body has 1 bytes")
	bad(w.post(objectPath("a"), "b"), "have the digest "+digestOf("b"))
	bad(w.post(strings.Replace(objectPath("a"), "size=1", "size=67108865", 1), "a"), "a larger file is uploaded in parts")
	bad(w.post(strings.Replace(objectPath("a"), "size=1", "size=x", 1), "a"), "size: ")
	bad(w.post(dataPath+"object?size=1&digest=x", "a"), "digest: ")
	bad(w.do(http.MethodGet, dataPath+"object?digest=../../x", ""), "digest: ")
	bad(w.do(http.MethodGet, getPath("a")+"&x=1", ""), "x: ")
	bad(w.post(dataPath+"objects", framesOf("abc")[:30], batch...), "within the head")
	bad(w.post(dataPath+"objects", framesOf("abc")[:42], batch...), "has 3 bytes by its header, and the body has 2 more")
	bad(w.post(dataPath+"objects", framesOf("abc")[:42]+"d", batch...), "its bytes do not have this digest")
	bad(w.post(dataPath+"objects/missing", `{"objects":[{"digest":"x"}]}`), "digest: ")
	bad(w.post(dataPath+"objects/missing", `[]`), "the body is invalid")
	wantProblem(t, w.post(dataPath+"objects", "x"), http.StatusUnsupportedMediaType, api.UnsupportedType, api.ObjectsType)
	wantProblem(t, w.post(dataPath+"objects", strings.Repeat("x", mostBatchBody+1), batch...), http.StatusRequestEntityTooLarge, api.TooLarge, "16777216")
	many := `{"objects":[` + strings.Repeat(fmt.Sprintf(`{"digest":"%s"},`, digestOf("a")), mostObjects) + fmt.Sprintf(`{"digest":"%s"}]}`, digestOf("a"))
	wantProblem(t, w.post(dataPath+"objects/missing", many), http.StatusRequestEntityTooLarge, api.TooLarge, "10000 objects")
	wantProblem(t, w.do(http.MethodGet, getPath("none"), ""), http.StatusNotFound, api.UnknownData, digestOf("none"))
}

func TestAGatewayWithoutAStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for _, r := range w.gateway.dataTable() {
		if r.method == http.MethodGet {
			wantProblem(t, w.do(r.method, r.path, ""), http.StatusNotFound, api.NotFound, "this gateway has no object store")
			continue
		}
		wantProblem(t, w.do(r.method, r.path, "{}"), http.StatusNotFound, api.NotFound, "this gateway has no object store")
	}
}

// A reader of an object with corrupt bytes must not take the object for complete.
func TestARottenObjectIsCutShort(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := must1(store.Open(t.Context(), store.Options{URL: dir}))(t)
	w := newWorld(t, func(o *Options) { o.Store = s })
	text := strings.Repeat("a", 1<<20)
	w.post(objectPath(text), text)
	corruptFile(t, dir, digestOf(text))
	res := must1(http.Get(w.url + getPath(text)))(t)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if !errors.Is(err, io.ErrUnexpectedEOF) || len(b) >= len(text) {
		t.Errorf("%d bytes came, %v", len(b), err)
	}
}

// corruptFile changes the first byte of a file in a store's folder.
func corruptFile(t *testing.T, dir, name string) {
	t.Helper()
	found := false
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.Name() != name {
			return err
		}
		found = true
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteAt([]byte("b"), 0)
			err = errors.Join(err, f.Close())
		}
		return err
	})
	if err != nil || !found {
		t.Fatalf("%t, %v", found, err)
	}
}

// An upload may be as slow as the limits allow, however long it takes. An upload that stops
// is cut.
func TestSlowUploads(t *testing.T) {
	const size = 4 << 20
	text := strings.Repeat("x", size)
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", objectPath(text), size)
	dir := t.TempDir()
	for name, c := range map[string]struct {
		pause  time.Duration // between pieces
		stop   int           // number of pieces until the upload stops
		status int
	}{
		"slow":   {2 * time.Second, size, http.StatusNoContent},
		"stalls": {0, 30, http.StatusRequestTimeout},
		"drips":  {time.Minute, size, http.StatusRequestTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			s := must1(store.Open(t.Context(), store.Options{URL: filepath.Join(dir, name)}))(t)
			inBubble(t, Options{Store: s}, func(t *testing.T, g *Gateway, dial func() net.Conn) {
				conn, began := dial(), time.Now()
				go func() {
					_, err := io.WriteString(conn, head)
					const piece = 64 << 10
					for at := 0; err == nil && at < min(size, c.stop*piece); at += piece {
						<-time.After(c.pause)
						_, err = io.WriteString(conn, text[at:at+piece])
					}
				}()
				r := read(t, must1(http.ReadResponse(bufio.NewReader(conn), nil))(t))
				if took := time.Since(began); r.StatusCode != c.status || took > 5*time.Minute {
					t.Errorf("%s after %s: %s", r.Status, took, r.body)
				}
			})
		})
	}
}

// A reader that takes nothing is cut off, but a slow reader is not.
func TestSlowDownloads(t *testing.T) {
	text := strings.Repeat("x", 8<<20)
	s := must1(store.Open(t.Context(), store.Options{URL: t.TempDir()}))(t)
	must1(0, s.PutObject(t.Context(), digestOf(text), int64(len(text)), strings.NewReader(text)))(t)
	for name, stop := range map[string]int{"slow": 8, "stalls": 2} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Options{Store: s}, func(t *testing.T, g *Gateway, dial func() net.Conn) {
				conn := dial()
				go func() { _, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", getPath(text)) }()
				res := must1(http.ReadResponse(bufio.NewReaderSize(conn, 4<<10), nil))(t)
				var n int64
				var err error
				for range stop {
					var k int64
					k, err = io.CopyN(io.Discard, res.Body, 1<<20)
					n += k
					<-time.After(time.Minute)
				}
				<-time.After(5 * time.Minute)
				k, _ := io.Copy(io.Discard, res.Body)
				if whole := n+k == int64(len(text)); whole != (name == "slow") {
					t.Errorf("%d bytes came, %v", n+k, err)
				}
			})
		})
	}
}
