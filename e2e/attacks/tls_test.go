//go:build slow && linux

package attacks

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// certificate returns a certificate for loopback that signs itself, and its key.
func (w *world) certificate(serial int64) (cert, key string) {
	w.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "attacks"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		w.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		w.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
}

// openTLS starts a tidemill that serves TLS, and so HTTP/2.
func openTLS(t *testing.T) *world {
	t.Helper()
	cert, key := (&world{T: t}).certificate(1)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(cert))
	w := openWorld(t, map[string]string{"cert.pem": cert, "key.pem": key}, "--tls-cert", "cert.pem", "--tls-key", "key.pem")
	w.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	return w
}

// replace renames a new file over an old one, as a deployment does.
func (w *world) replace(name, text string) {
	w.Helper()
	w.write(name+".new", text)
	if err := os.Rename(filepath.Join(w.dir, name+".new"), filepath.Join(w.dir, name)); err != nil {
		w.Fatal(err)
	}
}

// A client that floods one connection of HTTP/2 harms neither the memory nor other clients.
func TestHTTP2Floods(t *testing.T) {
	w := openTLS(t)
	w.healthy("before")
	for name, flood := range floods() {
		w.within(name, func() {
			var work sync.WaitGroup
			for range 8 {
				work.Go(func() { w.flood(flood) })
			}
			work.Go(func() { w.healthy("during " + name) })
			work.Wait()
		})
	}
}

// flood opens a connection of HTTP/2, and runs an attack on it until the gateway closes it.
func (w *world) flood(attack func(*http2.Framer, []byte) error) {
	w.Helper()
	c, err := tls.Dial("tcp", strings.TrimPrefix(w.url, "https://"), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) // an attacker trusts every server
	if err != nil {
		w.Error(err)
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(healthyWithin))
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return // the gateway may close the connection at any time
	}
	framer := http2.NewFramer(c, c)
	if framer.WriteSettings() != nil {
		return
	}
	go func() { _, _ = io.Copy(io.Discard, c) }()
	_ = attack(framer, w.headers())
}

// headers returns a request's header block.
func (w *world) headers() []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "localhost"}, {":path", "/api/v1/streams"}, {"authorization", "Bearer " + w.tokens["reader"]}} {
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // a buffer takes all
	}
	return b.Bytes()
}

// floods returns attacks on HTTP/2, by name.
func floods() map[string]func(*http2.Framer, []byte) error {
	const times = 20_000
	each := func(do func(f *http2.Framer, head []byte, i uint32) error) func(*http2.Framer, []byte) error {
		return func(f *http2.Framer, head []byte) error {
			var err error
			for i := uint32(0); i < times && err == nil; i++ {
				err = do(f, head, i)
			}
			return err
		}
	}
	return map[string]func(*http2.Framer, []byte) error{
		"rapid resets": each(func(f *http2.Framer, head []byte, i uint32) error {
			return errors.Join(f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: head, EndStream: true, EndHeaders: true}), f.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
		}),
		"many streams": each(func(f *http2.Framer, head []byte, i uint32) error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: head, EndHeaders: true})
		}),
		"an endless head": func(f *http2.Framer, head []byte) error {
			err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head})
			for i := 0; i < times && err == nil; i++ {
				err = f.WriteContinuation(1, false, []byte("\x00\x01a\x01b"))
			}
			return err
		},
		"settings": each(func(f *http2.Framer, _ []byte, i uint32) error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: i})
		}),
		"pings":        each(func(f *http2.Framer, _ []byte, _ uint32) error { return f.WritePing(false, [8]byte{}) }),
		"empty frames": each(func(f *http2.Framer, _ []byte, _ uint32) error { return f.WriteRawFrame(0xbe, 0, 0, nil) }),
		"priorities": each(func(f *http2.Framer, _ []byte, i uint32) error {
			return f.WritePriority(2*i+1, http2.PriorityParam{StreamDep: 2*i + 3})
		}),
	}
}

// A certificate is replaced under load, and by a bad one too. No request is lost.
func TestCertificatesChangeUnderLoad(t *testing.T) {
	w := openTLS(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(w.read("cert.pem")))
	cert, key := w.certificate(2)
	roots.AppendCertsFromPEM([]byte(cert))
	old, oldKey := w.read("cert.pem"), w.read("key.pem")
	var (
		work   sync.WaitGroup
		over   = make(chan struct{})
		served atomic.Int64
	)
	for range 8 {
		work.Go(func() {
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}, Timeout: healthyWithin}
			for {
				select {
				case <-over:
					return
				default:
				}
				res, err := client.Do(w.request(http.MethodGet, "/api/v1/streams", "", "reader"))
				if err != nil {
					w.Errorf("a request while certificates change: %v", err)
					return
				}
				_ = res.Body.Close()
				served.Add(1)
			}
		})
	}
	for range 3 {
		w.replace("cert.pem", "not a certificate")
		w.replace("key.pem", key)
		w.replace("cert.pem", cert)
		w.waitFor(func() bool { return w.serial() == 2 })
		w.replace("key.pem", oldKey)
		w.replace("cert.pem", old)
		w.waitFor(func() bool { return w.serial() == 1 })
	}
	close(over)
	work.Wait()
	t.Logf("%d requests were answered", served.Load())
}

// serial returns the number of the certificate that the gateway shows.
func (w *world) serial() int64 {
	c, err := tls.Dial("tcp", strings.TrimPrefix(w.url, "https://"), &tls.Config{InsecureSkipVerify: true}) // only its number counts
	if err != nil {
		w.Error(err)
		return 0
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}
