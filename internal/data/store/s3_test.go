package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minio/minio-go/v7"

	"tidemill.dev/api"
	"tidemill.dev/broker/network"
	"tidemill.dev/internal/data/store/s3test"
)

// s3Server is a server for one test, and the store's URL for it.
type s3Server struct {
	*s3test.Server
	url string
}

func newS3(t testing.TB) *s3Server {
	t.Setenv("AWS_ACCESS_KEY_ID", s3test.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3test.SecretKey)
	s := s3test.New()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return &s3Server{s, "s3://" + s3test.Bucket + "?prefix=prod/&endpoint=" + server.URL}
}

func TestS3(t *testing.T) {
	suite(t, func(t *testing.T) *Store { return openStore(t, newS3(t).url) })
}

// Errors contain the answer of S3 and some advice.
func TestS3Explains(t *testing.T) {
	server := newS3(t)
	w := &world{T: t, Store: openStore(t, server.url)}
	p := w.put("object")
	for answer, want := range map[string]string{
		"403 RequestTimeTooSkewed": "S3 answers 403 RequestTimeTooSkewed: It is RequestTimeTooSkewed; set the clock of this machine",
		"403 InvalidAccessKeyId":   "S3 answers 403 InvalidAccessKeyId: It is InvalidAccessKeyId; check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) and their rights",
		"404 NoSuchBucket":         "there is no such bucket: create it",
		"400 InvalidArgument":      "S3 answers 400 InvalidArgument: It is InvalidArgument",
		"301 PermanentRedirect":    "the bucket is in region eu-2, not in us-east-1: correct region= in the URL",
		"503 SlowDown":             "S3 answers 503 SlowDown",
		"404 XAdminUserNotFound":   "S3 answers 404 XAdminUserNotFound", // some servers answer a wrong key so
		"404 NoSuchUpload":         "S3 answers 404 NoSuchUpload",
		"404 NoSuchKey":            ErrNotFound.Error(),
	} {
		status, code, _ := strings.Cut(answer, " ")
		number, err := strconv.Atoi(status)
		w.must(err)
		server.Refuse = func(*http.Request) (int, string) { return number, code }
		_, err = w.read(p.Digest)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", answer, err, want)
		}
		if (want == ErrNotFound.Error()) != errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", answer, err)
		}
	}
}

// A bucket that vanishes is no store without objects, and a listing that fails in its middle is no
// short listing.
func TestS3Vanishes(t *testing.T) {
	server := newS3(t)
	w := &world{T: t, Store: openStore(t, server.url)}
	for i := range 2 * s3test.Page {
		w.put(fmt.Sprint(i))
	}
	server.Refuse = func(r *http.Request) (int, string) {
		if r.URL.Query().Has("continuation-token") {
			return http.StatusNotFound, "NoSuchBucket"
		}
		return 0, ""
	}
	n := 0
	err := w.bucket.list(t.Context(), objectsPrefix, func(item) error { n++; return nil })
	if err == nil || errors.Is(err, ErrNotFound) || n != s3test.Page {
		t.Errorf("%d keys: %v", n, err)
	}
	later(w.Store, 25*time.Hour)
	done, err := w.Collect(t.Context(), Collection{})
	if err == nil || done.Removed > 0 {
		t.Errorf("removed %d: %v", done.Removed, err)
	}
}

// A server that overwrites keys is refused, and so are credentials that only read.
func TestS3Checks(t *testing.T) {
	for answer, want := range map[string]string{
		"200 ":               "the server ignores If-None-Match in a PUT",
		"403 AccessDenied":   "check the store s3://bucket: write the key check-create: S3 answers 403 AccessDenied",
		"501 NotImplemented": "S3 answers 501 NotImplemented",
	} {
		server := newS3(t)
		status, code, _ := strings.Cut(answer, " ")
		server.Refuse = func(r *http.Request) (int, string) {
			number, _ := strconv.Atoi(status)
			if r.Method != http.MethodPut {
				number = 0
			}
			return number, code
		}
		if _, err := Open(t.Context(), Options{URL: server.url}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", answer, err, want)
		}
	}
}

// An uncertain create asks again, and is taken if the other one succeeds or goes on.
func TestS3Conflicts(t *testing.T) {
	server := newS3(t)
	b := openStore(t, server.url).bucket
	left := 2
	server.Refuse = func(r *http.Request) (int, string) {
		if left--; left >= 0 && r.Method == http.MethodPut {
			return http.StatusConflict, "ConditionalRequestConflict"
		}
		return 0, ""
	}
	if err := b.create(t.Context(), "k", []byte("mine")); err != nil {
		t.Error(err)
	}
	left = 2
	if err := b.create(t.Context(), "k", []byte("other")); !errors.Is(err, errTaken) {
		t.Error(err)
	}
	left = 1000
	if err := b.create(t.Context(), "new", []byte("other")); !errors.Is(err, errTaken) {
		t.Error(err)
	}
}

// A bucket that fails over may hide a commit, and still refuse another one of its number. A writer
// waits for that commit with few requests, and then commits on top of it.
func TestS3HidesACommit(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", s3test.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3test.SecretKey)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		server, over := s3test.New(), newPipes()
		serving := &http.Server{Handler: server}
		go func() { _ = serving.Serve(over) }() // ends by Close
		s, err := Open(ctx, Options{URL: "s3://" + s3test.Bucket + "?endpoint=http://bucket:1", Network: network.Network{Dial: over.dial}})
		if err != nil {
			t.Fatal(err)
		}
		w := &world{T: t, Store: s}
		commit := func(request string) (api.Committed, error) {
			p := w.put(request)
			return s.Commit(ctx, CommitRequest{CommitAsked: api.CommitAsked{Dataset: "d", Request: request}}, []api.Change{{File: api.File{Path: request, Digest: p.Digest, Size: p.Size}}})
		}
		first, err := commit("first")
		w.must(err)
		until, met := time.Now().Add(30*time.Second), 0
		server.Refuse = func(r *http.Request) (int, string) {
			if !strings.Contains(r.URL.Path, "/refs/") || r.Method == http.MethodPut || !time.Now().Before(until) {
				return 0, ""
			}
			if met++; met == 1000 {
				cancel()
			}
			return http.StatusNotFound, "NoSuchKey"
		}
		second, err := commit("second")
		if err != nil || second.Number != 2 || second.Parent != first.ID || met > 500 {
			t.Errorf("commit %d on top of %s after %d looks: %v", second.Number, second.Parent, met, err)
		}
		until, met = time.Now().Add(30*time.Second), 0
		time.AfterFunc(5*time.Second, cancel)
		if _, err := commit("third"); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "does not show it yet") {
			t.Errorf("a commit that ends while it waits: %v", err)
		}
		w.must(s.Close())
		w.must(serving.Close())
	})
}

// A bucket that fails over may hide all that was there before a commit. It stays, because it may have
// been built on meanwhile.
func TestS3HidesWhatACommitWasMadeOn(t *testing.T) {
	server := newS3(t)
	w := &world{T: t, Store: openStore(t, server.url)}
	hidden, removed := false, false
	hide := func(r *http.Request) (int, string) {
		isRead := r.Method == http.MethodGet || r.Method == http.MethodHead
		if r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/refs/") {
			removed = true
		}
		hidden = !removed && (hidden || r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/refs/"))
		if hidden && isRead && (strings.Contains(r.URL.Path, "/refs/") || strings.Contains(r.URL.Path, "/ids/")) {
			return http.StatusNotFound, "NoSuchKey"
		}
		return 0, ""
	}
	for n := range int64(3) {
		hidden, server.Refuse = false, hide
		made := w.committed("bots/a", map[string]string{"text": fmt.Sprint(n)})
		if made.Number != n+1 || removed {
			t.Errorf("commit %d is %+v, and one was removed: %t", n+1, made, removed)
		}
		server.Refuse = nil
		if head, err := w.Head(t.Context(), "bots/a", "main"); err != nil || head.ID != made.ID {
			t.Errorf("the head after commit %d is %+v, %v", n+1, head, err)
		}
		if found, err := w.FindCommit(t.Context(), "bots/a", made.ID); err != nil || found.Number != n+1 {
			t.Errorf("commit %d by its id: %+v, %v", n+1, found, err)
		}
	}
}

// A key that is listed is there, also if the bucket does not show it. So a run waits for its checkpoint, and no forgetting or
// watch for drift begins again.
func TestS3HidesWhatItLists(t *testing.T) {
	server := newS3(t)
	w := &world{T: t, Store: openStore(t, server.url)}
	tree := w.tree("state")
	w.must(w.SetCheckpoint(t.Context(), "r", 1, tree))
	w.must(w.PutNote(t.Context(), "n", []byte("so far")))
	object := w.put("an object").Digest
	w.must(w.setCondemned(t.Context(), condemnsPrefix+"c", condemned{Until: time.Now().Add(time.Hour)}))
	made := w.committed("bots/a", map[string]string{"text": "one"})
	for key, look := range map[string]func(s *Store) error{
		checkpointKey("r", 1):       func(s *Store) error { _, err := s.Checkpoint(t.Context(), "r"); return err },
		treeKey(tree.Tree):          func(s *Store) error { _, err := s.TreeRef(t.Context(), tree.Tree); return err },
		notesPrefix + "n":           func(s *Store) error { _, err := s.Note(t.Context(), "n"); return err },
		objectKey(object):           func(s *Store) error { _, _, err := s.Object(t.Context(), object); return err },
		refKey("bots/a", "main", 1): func(s *Store) error { _, err := s.Head(t.Context(), "bots/a", made.Branch); return err },
		condemnsPrefix + "c":        func(s *Store) error { _, err := s.condemn(t.Context(), condemnsPrefix+"c"); return err },
	} {
		server.Refuse = hiding(key)
		other := openStore(t, server.url)
		if err := look(other); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("hidden %s: %v", key, err)
		}
		server.Refuse = nil
		if err := look(other); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// hiding answers as if a key were not there.
func hiding(key string) func(*http.Request) (int, string) {
	return func(r *http.Request) (int, string) {
		if (r.Method == http.MethodGet || r.Method == http.MethodHead) && strings.HasSuffix(r.URL.Path, key) {
			return http.StatusNotFound, "NoSuchKey"
		}
		return 0, ""
	}
}

// A commit that takes back a hidden one is made, and is not called unchanged.
func TestS3HidesWhatACommitTakesBack(t *testing.T) {
	server := newS3(t)
	w := &world{T: t, Store: openStore(t, server.url)}
	first := w.committed("bots/a", map[string]string{"text": "one"})
	w.committed("bots/a", map[string]string{"text": "two"})
	looks, hidden := 0, hiding(refKey("bots/a", "main", 2))
	server.Refuse = func(r *http.Request) (int, string) {
		if looks++; looks < 50 {
			return hidden(r)
		}
		return 0, ""
	}
	if again := w.committed("bots/a", map[string]string{"text": "one"}); again.Number != 3 || again.Tree != first.Tree || looks < 50 {
		t.Errorf("after %d looks it is %+v", looks, again)
	}
}

// A collection that does not see a listed tree or checkpoint removes nothing.
func TestS3HidesFromACollection(t *testing.T) {
	server := newS3(t)
	w := &world{T: t, Store: openStore(t, server.url)}
	tree := w.tree("state")
	w.must(w.SetCheckpoint(t.Context(), "r", 1, tree))
	for _, key := range []string{treeKey(tree.Tree), checkpointKey("r", 1)} {
		before, other := server.Keys(), openStore(t, server.url)
		later(other, DefaultGrace+time.Minute)
		server.Refuse = func(r *http.Request) (int, string) {
			if strings.HasSuffix(r.URL.Path, key) {
				return http.StatusNotFound, "NoSuchKey"
			}
			return 0, ""
		}
		_, err := other.Collect(t.Context(), Collection{})
		if err == nil || !strings.Contains(err.Error(), "the store lists "+key+" and does not show it yet") {
			t.Errorf("a collection that is not shown %s: %v", key, err)
		}
		w.same("keys", server.Keys(), before)
	}
	server.Refuse = nil
}

// A hidden commit is announced later, however old its intent is.
func TestS3HidesACommitThatIsNotAnnounced(t *testing.T) {
	server := newS3(t)
	w := &world{T: t, Store: openStore(t, server.url)}
	made, err := w.commit("bots/a", map[string]string{"text": "one"}, CommitRequest{Announce: func(context.Context, api.Commit) error { return errors.New("Kafka is away") }})
	if err == nil {
		t.Error("it is announced")
	}
	later(w.Store, DefaultGrace+time.Minute)
	server.Refuse = func(r *http.Request) (int, string) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, refKey("bots/a", "main", 1)) {
			return http.StatusNotFound, "NoSuchKey"
		}
		return 0, ""
	}
	if err := w.Recover(t.Context(), w.announce); err == nil || !strings.Contains(err.Error(), "does not show it yet") {
		t.Error(err)
	}
	server.Refuse = nil
	w.must(w.Recover(t.Context(), w.announce))
	w.same("announced", w.announced, []string{made.ID})
}

// A commit whose write fails is in doubt if it cannot be read. It is not the files that are missing.
func TestS3CommitInDoubt(t *testing.T) {
	server := newS3(t)
	w := &world{T: t, Store: openStore(t, server.url)}
	p := w.put("object")
	server.Refuse = func(r *http.Request) (int, string) {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/refs/") {
			return http.StatusNotImplemented, "NotImplemented"
		}
		return 0, ""
	}
	r := CommitRequest{CommitAsked: api.CommitAsked{Dataset: "d", Request: "r"}}
	changes := []api.Change{{File: api.File{Path: "a", Digest: p.Digest, Size: p.Size}}}
	_, err := w.Commit(t.Context(), r, changes)
	if err == nil || errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "is in doubt: say the same request again: S3 answers 501") {
		t.Error(err)
	}
	server.Refuse = nil
	if done, err := w.Commit(t.Context(), r, changes); err != nil || done.Number != 1 {
		t.Errorf("the same request again: commit %d, %v", done.Number, err)
	}
}

// pipes is a network of one server, in memory.
type pipes struct {
	waiting chan net.Conn
	closed  chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.waiting <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.waiting:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A listing that the caller gives up is an error: a collection would take the rest for absent.
func TestS3ListingIsGivenUp(t *testing.T) {
	w := &world{T: t, Store: openStore(t, newS3(t).url)}
	for i := range 2 * s3test.Page {
		w.put(fmt.Sprint(i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := w.bucket.list(ctx, objectsPrefix, func(item) error { cancel(); return nil })
	if err == nil {
		t.Error("it ended without an error")
	}
}

// Each operation is one request, and none asks where the bucket is.
func TestS3Requests(t *testing.T) {
	server := newS3(t)
	w := &world{T: t, Store: openStore(t, server.url)}
	p := w.put("object")
	key := objectKey(p.Digest)
	_, err := w.read(p.Digest)
	w.must(err)
	_, err = w.bucket.stat(t.Context(), key)
	w.must(err)
	w.must(w.bucket.remove(t.Context(), key))
	w.must(w.bucket.remove(t.Context(), key))
	at := " /bucket/prod/" + key
	w.same("requests", server.Requests, []string{"GET /bucket/", "PUT /bucket/prod/check-create", "PUT /bucket/prod/check-create", "PUT" + at, "GET" + at, "HEAD" + at, "DELETE" + at, "DELETE" + at})
}

func TestS3URLs(t *testing.T) {
	env := map[string]string{}
	amazon := s3Place{bucket: "b", host: amazonHost, secure: true, region: "eu-1"}
	minioAt := s3Place{bucket: "b", host: "minio:9000", region: "us-east-1"}
	with := func(p s3Place, change func(*s3Place)) s3Place { change(&p); return p }
	for _, c := range []struct {
		query, env string
		want       s3Place
		fails      string
	}{
		{"region=eu-1", "", amazon, ""},
		{"", "AWS_REGION=eu-1", amazon, ""},
		{"", "AWS_DEFAULT_REGION=eu-1", amazon, ""},
		{"region=eu-1", "AWS_REGION=us-2", amazon, ""},
		{"", "", s3Place{}, "add ?region="},
		{"endpoint=http://minio:9000", "", minioAt, ""},
		{"endpoint=http://minio:9000/", "", minioAt, ""},
		{"endpoint=minio:9000&disable_https=true", "", minioAt, ""},
		{"", "AWS_ENDPOINT_URL=http://minio:9000", minioAt, ""},
		{"", "AWS_ENDPOINT_URL_S3=http://minio:9000 AWS_ENDPOINT_URL=http://other", minioAt, ""},
		{"endpoint=http://minio:9000", "AWS_ENDPOINT_URL=http://other", minioAt, ""},
		{"endpoint=minio:9000", "", with(minioAt, func(p *s3Place) { p.secure = true }), ""},
		{"endpoint=http://minio:9000&region=eu-1", "", with(minioAt, func(p *s3Place) { p.region = "eu-1" }), ""},
		{"endpoint=https://s3.eu-west-3.amazonaws.com", "", s3Place{bucket: "b", host: "s3.eu-west-3.amazonaws.com", secure: true, region: "eu-west-3"}, ""},
		{"region=eu-1&disable_https=1", "", with(amazon, func(p *s3Place) { p.secure = false }), ""},
		{"region=eu-1&use_path_style=true", "", with(amazon, func(p *s3Place) { p.lookup = minio.BucketLookupPath }), ""},
		{"region=eu-1&s3ForcePathStyle=true", "", with(amazon, func(p *s3Place) { p.lookup = minio.BucketLookupPath }), ""},
		{"region=eu-1&use_path_style=false", "", with(amazon, func(p *s3Place) { p.lookup = minio.BucketLookupDNS }), ""},
		{"region=eu-1&prefix=prod/&profile=me&anonymous=true&dualstack=true", "", with(amazon, func(p *s3Place) {
			p.prefix, p.profile, p.anonymous, p.dualstack = "prod/", "me", true, true
		}), ""},
		{"region=eu-1&hostname_immutable=true&request_checksum_calculation=when_required&response_checksum_validation=when_required", "", amazon, ""},
		{"region=eu-1&use_path_style=hunter2", "", s3Place{}, "use_path_style has to be true or false"},
		{"region=eu-1&anonymous=hunter2", "", s3Place{}, "anonymous has to be true or false"},
		{"region=eu-1&ssetype=hunter2", "", s3Place{}, "ssetype has to be"},
		{"region=eu-1&zone=hunter2", "", s3Place{}, `unknown parameter "zone"; known are region, endpoint`},
		{"region=eu-1&x=%hunter2", "", s3Place{}, "malformed"},
		{"endpoint=http://minio/hunter2", "", s3Place{}, "without a path"},
		{"endpoint=http://me:hunter2@minio", "", s3Place{}, "not the address of a server"},
		{"endpoint=ftp://minio", "", s3Place{}, "not the address of a server"},
	} {
		clear(env)
		for pair := range strings.FieldsSeq(c.env) {
			name, value, _ := strings.Cut(pair, "=")
			env[name] = value
		}
		p, err := parseS3("s3://b?"+c.query, func(name string) string { return env[name] })
		switch {
		case c.fails == "" && (err != nil || p != c.want):
			t.Errorf("%s %s: %+v, want %+v: %v", c.query, c.env, p, c.want, err)
		case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails) || strings.Contains(err.Error(), "hunter2")):
			t.Errorf("%s %s: %v, want %q", c.query, c.env, err, c.fails)
		}
	}
}

func TestS3Encryption(t *testing.T) {
	for query, want := range map[string]string{"": "", "ssetype=AES256": "AES256", "ssetype=aws:kms": "aws:kms", "ssetype=aws:kms&kmskeyid=k": "aws:kms k", "kmskeyid=k": "aws:kms k"} {
		p, err := parseS3("s3://b?region=eu-1&"+query, func(string) string { return "" })
		if err != nil {
			t.Error(err)
			continue
		}
		h := http.Header{}
		if p.encryption != nil {
			p.encryption.Marshal(h)
		}
		got := strings.TrimSpace(h.Get("X-Amz-Server-Side-Encryption") + " " + h.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id"))
		if got != want {
			t.Errorf("%q: %q, want %q", query, got, want)
		}
	}
}

// Credentials come from the profile of the URL, the environment, or the default profile.
func TestS3Credentials(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials")
	text := "[default]\naws_access_key_id = of-default\naws_secret_access_key = s\n[me]\naws_access_key_id = of-me\naws_secret_access_key = s\n[half]\naws_access_key_id = half\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ query, env, want, fails string }{
		{"", "AWS_ACCESS_KEY_ID=of-env AWS_SECRET_ACCESS_KEY=s", "of-env", ""},
		{"", "AWS_ACCESS_KEY_ID=of-env", "", "only one of"},
		{"profile=me", "AWS_ACCESS_KEY_ID=of-env AWS_SECRET_ACCESS_KEY=s", "of-me", ""},
		{"profile=none", "", "", "profile none of the URL"},
		{"profile=half", "", "", "profile half of the URL"},
		{"", "", "of-default", ""},
		{"", "AWS_PROFILE=me", "of-me", ""},
		{"", "AWS_PROFILE=none", "", "profile none"},
		{"", "AWS_SHARED_CREDENTIALS_FILE=/none", "", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"},
		{"anonymous=true", "", "", ""},
	} {
		t.Run(c.query+" "+c.env, func(t *testing.T) {
			for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"} {
				t.Setenv(name, "")
			}
			t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
			t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
			t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
			for pair := range strings.FieldsSeq(c.env) {
				name, value, _ := strings.Cut(pair, "=")
				t.Setenv(name, value)
			}
			b, err := openS3("s3://bucket?region=eu-1&"+c.query, network.Network{})
			if err != nil {
				t.Fatal(err)
			}
			v, err := b.client.GetCreds()
			if v.AccessKeyID != c.want || (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%q: %v", v.AccessKeyID, err)
			}
		})
	}
}

// A role's credentials are used until they expire if the service that lends them is down.
func TestS3Role(t *testing.T) {
	var lock sync.Mutex
	down, valid := false, time.Hour
	lender := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		lock.Lock()
		defer lock.Unlock()
		if down {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, `{"AccessKeyId":"lent","SecretAccessKey":"s","Token":"t","Expiration":%q}`, time.Now().Add(valid).UTC().Format(time.RFC3339))
	}))
	defer lender.Close()
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/none")
	t.Setenv("AWS_CONFIG_FILE", "/none")
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", lender.URL)
	b, err := openS3("s3://bucket?region=eu-1", network.Network{})
	if err != nil {
		t.Fatal(err)
	}
	c := &s3Credentials{place: &b.place, client: http.DefaultClient}
	for _, step := range []struct {
		down  bool
		valid time.Duration
		fails bool
	}{{false, time.Hour, false}, {true, 0, false}, {false, -time.Hour, false}, {true, 0, true}} {
		lock.Lock()
		down, valid = step.down, step.valid
		lock.Unlock()
		v, err := c.Retrieve()
		if step.fails != (err != nil) || err == nil && v.AccessKeyID != "lent" {
			t.Errorf("%+v: %+v: %v", step, v, err)
		}
	}
}

// An endpoint that nothing listens at is reported, soon, and so are other mistakes.
func TestS3Mistakes(t *testing.T) {
	server := newS3(t)
	for at, want := range map[string]string{
		"s3://bucket?endpoint=http://127.0.0.1:1&prefix=hunter2":            "ask the store s3://bucket whether it is there: reach S3 at http://127.0.0.1:1: dial tcp",
		"s3://not-" + strings.TrimPrefix(server.url, "s3://"):               "ask the store s3://not-bucket whether it is there: there is no such bucket",
		strings.Replace(server.url, "bucket?", "bucket/some/path?", 1):      "write ?prefix=",
		"s3://me:hunter2@bucket?region=eu-1":                                "open the store: s3://bucket: the URL has a user",
		"gs://bucket":                                                       "open the store: gs://bucket: a store is a folder, or a bucket of S3",
		"s3://b?region=eu-1":                                                "name cannot be shorter",
		strings.Replace(server.url, "http://", "https://", 1) + "&hunter2=": `unknown parameter "hunter2"`,
	} {
		began := time.Now()
		_, err := Open(t.Context(), Options{URL: at})
		if err == nil || !strings.Contains(err.Error(), want) || time.Since(began) > 10*time.Second {
			t.Errorf("%s after %v: %v, want %q", at, time.Since(began), err, want)
		}
		if strings.Contains(fmt.Sprint(err), "prefix=") && !strings.Contains(want, "prefix=") {
			t.Errorf("%s: %v shows the URL's query", at, err)
		}
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "other")
	_, err := Open(t.Context(), Options{URL: server.url})
	if err == nil || !strings.Contains(err.Error(), "check the credentials") {
		t.Errorf("a wrong key: %v", err)
	}
}

// Each large object that is written again takes memory. So few are at the same time, however many a request names.
func TestS3RewritesFewAtATime(t *testing.T) {
	var lock sync.Mutex
	writing, most := map[string]bool{}, 0
	s, err := Open(t.Context(), Options{URL: newS3(t).url, Watch: func(key string) {
		lock.Lock()
		defer lock.Unlock()
		if writing[key] = !writing[key]; !writing[key] {
			delete(writing, key)
		}
		most = max(most, len(writing))
	}})
	must(t, err)
	w := &world{T: t, Store: s}
	var all []api.Part
	for i := range 4 * s3Ways {
		all = append(all, w.put(strings.Repeat(fmt.Sprintf("%04d", i), smallObject)))
	}
	s.now = func() time.Time { return time.Now().Add(DefaultGrace) }
	missing, err := w.Missing(t.Context(), all)
	if err != nil || len(missing) > 0 || most > rewrites {
		t.Errorf("%d objects were written at a time: %v", most, err)
	}
}
