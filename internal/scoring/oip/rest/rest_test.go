package rest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tidemill.dev/internal/scoring/oip"
)

func TestParsePath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]target{
		"/v2":                                    {kind: aboutServer},
		"/v2/":                                   {kind: aboutServer},
		"/v2/health/live":                        {kind: aboutLive},
		"/v2/health/ready":                       {kind: aboutReady},
		"/v2/models/intent/bot-42":               {kind: aboutModel, model: "intent/bot-42"},
		"/v2/repository/index":                   {kind: toIndex},
		"/v2/repository/models/a/b/load":         {kind: toLoad, model: "a/b"},
		"/v2/repository/models/a/load/unload":    {kind: toUnload, model: "a/load"},
		"/v2/models/m/ready":                     {kind: aboutModelReady, model: "m"},
		"/v2/models/intent/bot-42/infer":         {kind: toInfer, model: "intent/bot-42"},
		"/v2/models/intent/bot-42/versions/7":    {kind: aboutModel, model: "intent/bot-42", version: 7},
		"/v2/models/a/versions/12/infer":         {kind: toInfer, model: "a", version: 12},
		"/v2/models/a/versions/1/ready":          {kind: aboutModelReady, model: "a", version: 1},
		"/v2/models/a/versions/b/c":              {kind: aboutModel, model: "a/versions/b/c"},
		"/v2/models/a/versions/b/versions/2":     {kind: aboutModel, model: "a/versions/b", version: 2},
		"/v2/models/versions/infer":              {kind: toInfer, model: "versions"},
		"/v2/models/a/versions/3/versions/4":     {kind: aboutModel, model: "a/versions/3", version: 4},
		"/v2/models/a/versions/3/ready/infer":    {kind: toInfer, model: "a/versions/3/ready"},
		"/v2/models/intent/versions-2/bot/infer": {kind: toInfer, model: "intent/versions-2/bot"},
	} {
		if got, err := parsePath(path); err != nil || got != want {
			t.Errorf("%s: %+v, %v", path, got, err)
		}
	}
	for _, path := range []string{"/v2/model/x", "/v2/health", "/v3", "/v2/repository", "/v2/repository/models/a", "/v2/repository/index/x", "/v2/models/a/versions/0", "/v2/models/a/versions/x/infer", "/v2/models/a/versions/01", "/v2/models/a/versions/-1", "/v2/models/a/versions/"} {
		if got, err := parsePath(path); err == nil || statusOf(err) != http.StatusNotFound {
			t.Errorf("%s: %+v, %v", path, got, err)
		}
	}
}

func TestMethodsOfPaths(t *testing.T) {
	t.Parallel()
	h := New(Options{Server: oip.New(oip.Options{Version: "1"})})
	for _, c := range [][3]string{{"POST", "/v2", "GET"}, {"GET", "/v2/models/a/infer", "POST"}, {"DELETE", "/v2/models/a", "GET"}} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(c[0], c[1], nil))
		if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != c[2] || !strings.Contains(w.Body.String(), `{"error":"`) {
			t.Errorf("%v: %d %v %s", c, w.Code, w.Header(), w.Body)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/v2", nil))
	if w.Code != http.StatusOK || strings.TrimSpace(w.Body.String()) != `{"name":"tidemill","version":"1","extensions":["binary_tensor_data","model_repository"]}` {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
