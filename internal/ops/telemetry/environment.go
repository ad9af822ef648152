package telemetry

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// envLookup looks up OpenTelemetry's variables by their names in the specification. The SDK also
// reads the variables, but writes errors to standard error instead of a logger and continues. So
// this package reads them first. An invalid value is an error, and valid values are given to the
// SDK as options, which override the variables.
type envLookup func(string) string

const (
	defaultService = "tidemill"
	exporterPrefix = "OTEL_EXPORTER_OTLP_"
)

func (e envLookup) value(variable string) string { return strings.TrimSpace(e(variable)) }

// exporterSetting returns a setting of the exporter. The variable for traces overrides the variable
// for all signals.
func (e envLookup) exporterSetting(setting string) (variable, value string) {
	variable = exporterPrefix + "TRACES_" + setting
	if value = e.value(variable); value == "" {
		variable = exporterPrefix + setting
		value = e.value(variable)
	}
	return variable, value
}

// isOff reports whether traces are switched off.
func (e envLookup) isOff() (bool, error) {
	if strings.EqualFold(e.value("OTEL_SDK_DISABLED"), "true") {
		return true, nil
	}
	switch exporter := e.value("OTEL_TRACES_EXPORTER"); exporter {
	case "", "otlp":
		return false, nil
	case "none":
		return true, nil
	default:
		return false, fmt.Errorf("read OTEL_TRACES_EXPORTER: no exporter is called %q: use otlp or none", exporter)
	}
}

// collectorURL returns the URL of the collector; nil if no variable names one. For a URL for all
// signals, OTLP over HTTP adds its path.
func (e envLookup) collectorURL(grpc bool) (*url.URL, error) {
	variable, text := e.exporterSetting("ENDPOINT")
	if text == "" {
		return nil, nil
	}
	at, err := url.Parse(text)
	switch {
	case err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https":
		return nil, fmt.Errorf("read %s: it is not the URL of a collector: write it like http://collector:4318", variable)
	case at.User != nil:
		return nil, fmt.Errorf("read %s: it holds a user or a password: give those in %sHEADERS", variable, exporterPrefix)
	case at.RawQuery != "" || at.Fragment != "":
		return nil, fmt.Errorf("read %s: a collector's URL ends with its path: leave out ? and # and the rest", variable)
	}
	if variable == exporterPrefix+"ENDPOINT" && !grpc {
		at = at.JoinPath("v1", "traces")
	}
	return at, nil
}

func (e envLookup) grpc() (bool, error) {
	switch variable, protocol := e.exporterSetting("PROTOCOL"); protocol {
	case "", "http/protobuf":
		return false, nil
	case "grpc":
		return true, nil
	default:
		return false, fmt.Errorf("read %s: no protocol is called %q: use http/protobuf or grpc", variable, protocol)
	}
}

// namedValue is one element of a list name=value,name=value in a variable.
type namedValue struct{ name, value string }

var (
	errNoEquals = errors.New("it has no =")
	errNoName   = errors.New("it has no name before the =")
	errEscape   = errors.New("it has a % that no two hexadecimal digits follow")
)

// parsePairs reads a list name=value,name=value. Errors name a pair by its number, because the list
// may contain a token.
func parsePairs(variable, list string) ([]namedValue, error) {
	var all []namedValue
	for i, text := range strings.Split(list, ",") {
		if strings.TrimSpace(text) == "" {
			continue
		}
		p, err := readPair(text)
		if err != nil {
			return nil, fmt.Errorf("read %s: pair %d: %w: write name=value,name=value, with %%2C for a comma", variable, i+1, err)
		}
		all = append(all, p)
	}
	return all, nil
}

func readPair(text string) (namedValue, error) {
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		return namedValue{}, errNoEquals
	}
	if name = strings.TrimSpace(name); name == "" {
		return namedValue{}, errNoName
	}
	value, err := url.PathUnescape(strings.TrimSpace(value))
	if err != nil {
		return namedValue{}, errEscape
	}
	return namedValue{name, value}, nil
}

// spanReceiver holds the address and the settings of the collector.
type spanReceiver struct {
	endpoint *url.URL
	grpc     bool
	headers  map[string]string
	timeout  time.Duration // timeout of one export
	gzip     bool
	tls      *tls.Config // TLS settings; nil without TLS
}

const defaultTimeout = 10 * time.Second

// readCollector reads the settings of the collector; nil if traces are off.
func (e envLookup) readCollector() (*spanReceiver, error) {
	off, err := e.isOff()
	if err != nil || off {
		return nil, err
	}
	c := &spanReceiver{}
	if c.grpc, err = e.grpc(); err != nil {
		return nil, err
	}
	if c.endpoint, err = e.collectorURL(c.grpc); err != nil || c.endpoint == nil {
		return nil, err
	}
	if c.headers, err = e.headers(); err != nil {
		return nil, err
	}
	if c.timeout, err = e.timeout(); err != nil {
		return nil, err
	}
	if c.gzip, err = e.gzip(); err != nil {
		return nil, err
	}
	if c.endpoint.Scheme == "https" {
		c.tls, err = e.readTLS()
	}
	return c, err
}

func (e envLookup) headers() (map[string]string, error) {
	variable, text := e.exporterSetting("HEADERS")
	list, err := parsePairs(variable, text)
	if err != nil {
		return nil, err
	}
	headers := make(map[string]string, len(list))
	for i, p := range list {
		if strings.ContainsFunc(p.name, noNameLetter) || strings.ContainsFunc(p.value, noValueLetter) {
			return nil, fmt.Errorf("read %s: header %d is not valid: its name or its value has characters that a header cannot have", variable, i+1)
		}
		headers[p.name] = p.value
	}
	return headers, nil
}

func noNameLetter(r rune) bool {
	return r <= ' ' || r > '~' || strings.ContainsRune("()<>@,;:\\\"/[]?={}", r)
}

func noValueLetter(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

func (e envLookup) timeout() (time.Duration, error) {
	variable, text := e.exporterSetting("TIMEOUT")
	if text == "" {
		return defaultTimeout, nil
	}
	ms, err := strconv.ParseUint(text, 10, 31)
	if err != nil || ms == 0 {
		return 0, fmt.Errorf("read %s: %q is not a time: give milliseconds, such as 10000", variable, text)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func (e envLookup) gzip() (bool, error) {
	switch variable, text := e.exporterSetting("COMPRESSION"); text {
	case "", "none":
		return false, nil
	case "gzip":
		return true, nil
	default:
		return false, fmt.Errorf("read %s: no compression is called %q: use gzip or none", variable, text)
	}
}

// readTLS reads the trusted CAs and our client certificate. Unlike the SDK, it returns an error if
// the named CAs cannot be read, and does not use the system's CAs instead.
func (e envLookup) readTLS() (*tls.Config, error) {
	c := &tls.Config{}
	if variable, file := e.exporterSetting("CERTIFICATE"); file != "" {
		pem, err := os.ReadFile(file)
		if err == nil {
			c.RootCAs = x509.NewCertPool()
			if !c.RootCAs.AppendCertsFromPEM(pem) {
				err = errors.New(file + " holds no certificate in PEM")
			}
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", variable, err)
		}
	}
	variable, cert := e.exporterSetting("CLIENT_CERTIFICATE")
	_, key := e.exporterSetting("CLIENT_KEY")
	if cert == "" && key == "" {
		return c, nil
	}
	ours, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("read %s and its CLIENT_KEY: %w", variable, err)
	}
	c.Certificates = []tls.Certificate{ours}
	return c, nil
}
