package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tidemill.dev/functions"
)

// postOrder posts an order as Tidemill would.
func postOrder(t *testing.T, subject, at, data string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(data))
	for name, value := range map[string]string{"ce-specversion": "1.0", "ce-id": "order-1", "ce-source": "/shop", "ce-type": "order-placed",
		"ce-subject": subject, "ce-time": at, "content-type": "application/json"} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	w := httptest.NewRecorder()
	functions.Handler(invoice, functions.Options{}).ServeHTTP(w, r)
	return w
}

func TestInvoice(t *testing.T) {
	t.Parallel()
	w := postOrder(t, "merchant-7", "2026-02-20T23:30:00-05:00", `{"total": 12.5}`)
	if w.Code != http.StatusOK || w.Header().Get("Ce-Type") != "invoice-due" || w.Header().Get("Ce-Subject") != "merchant-7" {
		t.Fatalf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	var got invoiceDue
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if want := (invoiceDue{Order: "order-1", Total: 12.5, Currency: "EUR", Due: "2026-03-07"}); got != want {
		t.Errorf("the invoice is %+v, want %+v", got, want)
	}
	if again := postOrder(t, "merchant-7", "2026-02-20T23:30:00-05:00", `{"total": 12.5}`); again.Header().Get("Ce-Id") != w.Header().Get("Ce-Id") {
		t.Error("the same order has another invoice")
	}
}

func TestInvoiceRefuses(t *testing.T) {
	t.Parallel()
	const at = "2026-03-01T12:00:00Z"
	for _, c := range []struct {
		name, subject, at, data string
		status                  int
		says                    string
	}{
		{"nothing to pay", "merchant-7", at, `{"total": 0}`, http.StatusNoContent, ""},
		{"a refund", "merchant-7", at, `{"total": -3}`, http.StatusUnprocessableEntity, "the order's total is -3.00"},
		{"nobody to pay", "", at, `{"total": 3}`, http.StatusUnprocessableEntity, "needs a subject"},
		{"no time", "merchant-7", "", `{"total": 3}`, http.StatusUnprocessableEntity, "needs a time"},
		{"no number", "merchant-7", at, `{"total": "3"}`, http.StatusUnprocessableEntity, "read order order-1"},
	} {
		if w := postOrder(t, c.subject, c.at, c.data); w.Code != c.status || !strings.Contains(w.Body.String(), c.says) {
			t.Errorf("%s: %d %s, want %d %q", c.name, w.Code, w.Body, c.status, c.says)
		}
	}
}
