package gateway

import (
	"net/http"
	"strings"
	"testing"
)

// BenchmarkAttempt measures an attempt's requests: its order, which asks the ledger, and a
// question about objects, which uses the ledger's previous answer.
func BenchmarkAttempt(b *testing.B) {
	m := newMill(b, nil)
	a := m.beginRun("fit", "bot-1")
	for name, q := range map[string]gatewayRequest{"order": {method: http.MethodGet}, "missing": {method: http.MethodPost, path: "/objects/missing", body: "{}"},
		"beat": {method: http.MethodPost, path: "/beat"}} {
		b.Run(name, func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 10}}
				defer client.CloseIdleConnections()
				for pb.Next() {
					req, _ := http.NewRequest(q.method, m.url+a.path(q.path), strings.NewReader(q.body))
					req.Header.Set("Authorization", "Bearer "+a.token)
					res, err := client.Do(req)
					if err != nil || res.StatusCode != http.StatusOK {
						b.Errorf("%v %v", res, err)
						return
					}
					_ = read(b, res)
				}
			})
		})
	}
}
