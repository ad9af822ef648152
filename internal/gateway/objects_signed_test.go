package gateway

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tidemill.dev/internal/data/store"
)

// An object in a bucket that signs URLs is read directly from there.
func TestSignedObjects(t *testing.T) {
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-1", "AWS_EC2_METADATA_DISABLED": "true"} {
		t.Setenv(name, value)
	}
	bucket := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodHead:
			w.WriteHeader(http.StatusNotFound)
			return
		case http.MethodPut: // the store checks that the server overwrites nothing
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		fmt.Fprint(w, `<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>`)
	}))
	defer bucket.Close()
	s := must1(store.Open(t.Context(), store.Options{URL: "s3://bucket?region=eu-1&use_path_style=true&disable_https=true&endpoint=" + bucket.URL}))(t)
	w := newWorld(t, func(o *Options) { o.Store = s })
	req := must1(http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+getPath("a"), nil))(t)
	r := read(t, must1(http.DefaultTransport.RoundTrip(req))(t))
	if to := r.Header.Get("Location"); r.StatusCode != http.StatusTemporaryRedirect || !strings.HasPrefix(to, bucket.URL) || !strings.Contains(to, digestOf("a")) || !strings.Contains(to, "Signature=") {
		t.Errorf("%s to %s", r.Status, to)
	}
}
