package gateway

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/api"
)

// metrics are what the gateway counts and measures. docs/metrics.md lists them.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	events   *prometheus.CounterVec
	own, ack prometheus.Histogram
	homeless prometheus.Counter // refused events of no stream
	idle     *prometheus.CounterVec
	refused  refusals
}

// refusals count callers that were sent away before they were heard.
type refusals struct {
	token, role, host, headers, share, room, slow, connections, superseded prometheus.Counter
}

// ownBuckets are fine enough to tell whether 99 of 100 stay below a millisecond.
func ownBuckets() []float64 {
	return []float64{25e-6, 50e-6, 100e-6, 150e-6, 200e-6, 300e-6, 400e-6, 500e-6, 750e-6, 1e-3, 1.5e-3, 2.5e-3, 5e-3, 10e-3, 50e-3}
}

func secondsBuckets() []float64 {
	return []float64{250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1, 2.5, 5, 10, 30}
}

func (g *Gateway) newMetrics(to prometheus.Registerer) (*metrics, error) {
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_gateway_refused_total",
		Help: "Callers sent away before they were heard, by reason."}, []string{"reason"})
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_gateway_requests_total",
			Help: "Requests answered, by route and status."}, []string{"route", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tidemill_gateway_request_seconds",
			Help: "From a request's headers to the end of its answer.", Buckets: secondsBuckets()}, []string{"route"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_gateway_events_total",
			Help: "Events published, by stream and outcome: stored, repeated, refused or failed. The stream is empty where none could be told."},
			[]string{"stream", "outcome"}),
		own: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tidemill_gateway_own_seconds",
			Help: "Of a request that publishes, without reading its body and without waiting for Kafka.", Buckets: ownBuckets()}),
		ack: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tidemill_gateway_ack_seconds",
			Help: "From handing a request's events over until Kafka has acknowledged all of them.", Buckets: secondsBuckets()}),
	}
	m.idle = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_idle_gpu_seconds_total",
		Help: "GPU-seconds that pods which had done their run waited for another, by pool."}, []string{"pool"})
	m.homeless = m.events.WithLabelValues("", "refused")
	for reason, counter := range map[string]*prometheus.Counter{
		"token": &m.refused.token, "role": &m.refused.role, "host": &m.refused.host, "headers": &m.refused.headers,
		"share": &m.refused.share, "room": &m.refused.room, "slow": &m.refused.slow, "connections": &m.refused.connections,
		"superseded": &m.refused.superseded,
	} {
		*counter = refused.WithLabelValues(reason)
	}
	for _, c := range []prometheus.Collector{m.requests, m.seconds, m.events, m.own, m.ack, refused, m.idle,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemill_gateway_under_way_bytes",
			Help: "Memory of the requests being answered."}, func() float64 { return g.room.bytes() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemill_gateway_unacked_bytes",
			Help: "Events that Kafka has yet to acknowledge."}, func() float64 { return g.window.bytes() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemill_gateway_connections",
			Help: "Connections open now."}, func() float64 { return g.listener.count() }),
	} {
		if err := to.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// showMetrics serves the metrics of the whole process.
func (g *Gateway) showMetrics(w http.ResponseWriter, r *request) *api.Problem {
	g.shown.ServeHTTP(w, r.Request)
	return nil
}

// measure is what one route counts, looked up once and not with every request.
type measure struct {
	route    string
	requests *prometheus.CounterVec
	accepted prometheus.Counter
	seconds  prometheus.Observer
}

func (m *metrics) of(route string) measure {
	return measure{route, m.requests, m.requests.WithLabelValues(route, strconv.Itoa(http.StatusAccepted)), m.seconds.WithLabelValues(route)}
}

func (m *measure) answered(status int, took time.Duration) {
	m.seconds.Observe(took.Seconds())
	if status == http.StatusAccepted {
		m.accepted.Inc()
		return
	}
	m.requests.WithLabelValues(m.route, strconv.Itoa(status)).Inc()
}
