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

// collector is where spans go and how.
type collector struct {
	endpoint *url.URL
	grpc     bool
	headers  map[string]string
	timeout  time.Duration // of one export
	gzip     bool
	tls      *tls.Config // nil without TLS
}

const defaultTimeout = 10 * time.Second

// collector reads where spans go; nil is nowhere.
func (e environment) collector() (*collector, error) {
	off, err := e.off()
	if err != nil || off {
		return nil, err
	}
	c := &collector{}
	if c.grpc, err = e.grpc(); err != nil {
		return nil, err
	}
	if c.endpoint, err = e.endpoint(c.grpc); err != nil || c.endpoint == nil {
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
		c.tls, err = e.tls()
	}
	return c, err
}

func (e environment) headers() (map[string]string, error) {
	variable, text := e.exporter("HEADERS")
	list, err := pairs(variable, text)
	if err != nil {
		return nil, err
	}
	headers := make(map[string]string, len(list))
	for i, p := range list {
		if strings.ContainsFunc(p.name, noNameLetter) || strings.ContainsFunc(p.value, noValueLetter) {
			return nil, fmt.Errorf("read %s: header %d may not be one: its name or its value holds letters that no header may", variable, i+1)
		}
		headers[p.name] = p.value
	}
	return headers, nil
}

func noNameLetter(r rune) bool {
	return r <= ' ' || r > '~' || strings.ContainsRune("()<>@,;:\\\"/[]?={}", r)
}

func noValueLetter(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

func (e environment) timeout() (time.Duration, error) {
	variable, text := e.exporter("TIMEOUT")
	if text == "" {
		return defaultTimeout, nil
	}
	ms, err := strconv.ParseUint(text, 10, 31)
	if err != nil || ms == 0 {
		return 0, fmt.Errorf("read %s: %q is no time: give milliseconds, 10000 say", variable, text)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func (e environment) gzip() (bool, error) {
	switch variable, text := e.exporter("COMPRESSION"); text {
	case "", "none":
		return false, nil
	case "gzip":
		return true, nil
	default:
		return false, fmt.Errorf("read %s: no compression is called %q: use gzip or none", variable, text)
	}
}

// tls reads which collector to trust and who we are. Unlike the SDK it does not
// go on with the system's CAs if it cannot read those that are named.
func (e environment) tls() (*tls.Config, error) {
	c := &tls.Config{}
	if variable, file := e.exporter("CERTIFICATE"); file != "" {
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
	variable, cert := e.exporter("CLIENT_CERTIFICATE")
	_, key := e.exporter("CLIENT_KEY")
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
