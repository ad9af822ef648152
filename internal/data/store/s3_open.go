package store

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/encrypt"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"tidemill.dev/broker/network"
)

// s3Place is the place of a bucket of S3, from a URL and the environment.
type s3Place struct {
	bucket     string
	prefix     string // prefix of all keys
	host       string // host[:port] of the server
	secure     bool
	region     string
	lookup     minio.BucketLookupType
	dualstack  bool // whether to use Amazon's hosts that have IPv6
	anonymous  bool
	profile    string // profile that the URL names
	encryption encrypt.ServerSide
}

const (
	amazonHost    = "s3.amazonaws.com" // the client replaces it by the host of the region
	defaultRegion = "us-east-1"        // region that servers other than Amazon's expect
)

// s3Options are the parameters of a URL. The last three belonged to an earlier client and change
// nothing.
var s3Options = []string{"region", "endpoint", "use_path_style", "s3ForcePathStyle", "prefix", "profile", "anonymous", "ssetype",
	"kmskeyid", "dualstack", "disable_https", "hostname_immutable", "request_checksum_calculation", "response_checksum_validation"}

// parseS3 reads a URL such as s3://bucket?region=eu-1. No error shows a value of the query, which
// may be a secret.
func parseS3(at string, getenv func(string) string) (s3Place, error) {
	u, err := url.Parse(at)
	if err != nil {
		return s3Place{}, fmt.Errorf("read the store's URL: %w", errors.Unwrap(err))
	}
	q, err := url.ParseQuery(u.RawQuery)
	switch {
	case u.Scheme != "s3":
		return s3Place{}, errors.New("a store is a folder, or a bucket of S3 or of a server that speaks S3: write file:///folder or s3://bucket?region=eu-1")
	case u.User != nil:
		return s3Place{}, errors.New("the URL has a user: put the key into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	case strings.Trim(u.Path, "/") != "":
		return s3Place{}, errors.New("the path after the bucket counts for nothing: remove it, or write ?prefix=the/path/ to keep everything below it")
	case err != nil:
		return s3Place{}, errors.New("the URL's query is malformed: write it like ?region=eu-1&prefix=prod/")
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		if !slices.Contains(s3Options, name) {
			return s3Place{}, fmt.Errorf("the URL has an unknown parameter %q; known are %s", name, strings.Join(s3Options, ", "))
		}
	}
	p := s3Place{bucket: u.Host, prefix: q.Get("prefix"), profile: q.Get("profile")}
	return p, errors.Join(p.readServer(q, getenv), p.readFlags(q), p.readEncryption(q))
}

// readServer reads which server has the bucket, and the region.
func (p *s3Place) readServer(q url.Values, getenv func(string) string) error {
	plain, err := boolOf(q, "disable_https")
	if err != nil {
		return err
	}
	p.host, p.secure = amazonHost, !plain
	p.region = cmp.Or(q.Get("region"), getenv("AWS_REGION"), getenv("AWS_DEFAULT_REGION"))
	endpoint := cmp.Or(q.Get("endpoint"), getenv("AWS_ENDPOINT_URL_S3"), getenv("AWS_ENDPOINT_URL"))
	if endpoint == "" {
		if p.region == "" {
			return errors.New("no region is given: add ?region=eu-central-1 to the URL, with the bucket's region, or set AWS_REGION")
		}
		return nil
	}
	if !strings.Contains(endpoint, "://") {
		endpoint = map[bool]string{true: "https://", false: "http://"}[p.secure] + endpoint
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return errors.New("the endpoint is not the address of a server: write it like endpoint=https://minio.example:9000, without a path")
	}
	p.host, p.secure = u.Host, u.Scheme == "https"
	p.region = cmp.Or(p.region, s3utils.GetRegionFromURL(*u), defaultRegion)
	return nil
}

func (p *s3Place) readFlags(q url.Values) error {
	var errs [3]error
	for _, name := range []string{"use_path_style", "s3ForcePathStyle"} {
		if !q.Has(name) {
			continue // the client knows which servers want the bucket in the host's name
		}
		path, err := boolOf(q, name)
		p.lookup, errs[0] = minio.BucketLookupDNS, errors.Join(errs[0], err)
		if path {
			p.lookup = minio.BucketLookupPath
		}
	}
	p.anonymous, errs[1] = boolOf(q, "anonymous")
	p.dualstack, errs[2] = boolOf(q, "dualstack")
	return errors.Join(errs[:]...)
}

func boolOf(q url.Values, name string) (bool, error) {
	if q.Get(name) == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(q.Get(name))
	if err != nil {
		err = fmt.Errorf("parameter %s has to be true or false", name)
	}
	return b, err
}

func (p *s3Place) readEncryption(q url.Values) (err error) {
	key := q.Get("kmskeyid")
	switch kind := strings.ToLower(q.Get("ssetype")); {
	case kind == "aws:kms" || kind == "" && key != "":
		p.encryption, err = encrypt.NewSSEKMS(key, nil)
	case kind == "aes256" && key == "":
		p.encryption = encrypt.NewSSE()
	case kind != "":
		err = errors.New("parameter ssetype has to be AES256, or aws:kms with or without kmskeyid")
	}
	return err
}

// transport returns what sends the requests. As with other S3 clients, AWS_CA_BUNDLE names a file of
// CAs to trust.
func (p *s3Place) transport(over network.Network) (*http.Transport, error) {
	t, err := minio.DefaultTransport(true)
	if err != nil {
		return nil, err
	}
	t.DialContext = over.Dialer(net.Dialer{Timeout: s3Dial})
	t.MaxIdleConnsPerHost = 2 * s3Ways
	if file := os.Getenv("AWS_CA_BUNDLE"); file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read AWS_CA_BUNDLE: %w", err)
		}
		cas := x509.NewCertPool()
		if !cas.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("AWS_CA_BUNDLE: %s has no certificate in PEM", file)
		}
		t.TLSClientConfig = &tls.Config{RootCAs: cas, MinVersion: tls.VersionTLS12}
	}
	return t, nil
}

// s3Credentials finds credentials where Amazon's own clients look for them, in the same order. It is
// used by one goroutine at a time.
type s3Credentials struct {
	place  *s3Place
	client *http.Client // client for requests to the services that lend credentials
	found  credentials.Provider
	last   credentials.Value
}

func (p *s3Place) credentials(t *http.Transport) *credentials.Credentials {
	if p.anonymous {
		return credentials.NewStatic("", "", "", credentials.SignatureAnonymous)
	}
	return credentials.New(&s3Credentials{place: p, client: &http.Client{Transport: t, Timeout: s3Dial}})
}

func (c *s3Credentials) IsExpired() bool { return c.found == nil || c.found.IsExpired() }

func (c *s3Credentials) Retrieve() (credentials.Value, error) { return c.RetrieveWithCredContext(nil) }

// RetrieveWithCredContext returns the last credentials while they are valid, if there are no newer
// ones: the client asks some time before they expire.
func (c *s3Credentials) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	v, err := c.find(cc)
	switch {
	case err == nil:
		c.last = v
	case c.last.Expiration.After(time.Now()):
		return c.last, nil
	default:
		err = fmt.Errorf("find credentials for S3 (%s): %w", c.place.source(), err)
	}
	return v, err
}

func (c *s3Credentials) find(cc *credentials.CredContext) (credentials.Value, error) {
	id, secret := accessKey()
	switch {
	case c.place.profile != "":
		return c.from(cc, &credentials.FileAWSCredentials{Profile: c.place.profile})
	case id != "" && secret != "":
		return c.from(cc, &credentials.Static{Value: credentials.Value{AccessKeyID: id, SecretAccessKey: secret,
			SessionToken: os.Getenv("AWS_SESSION_TOKEN"), SignerType: credentials.SignatureV4}})
	case id != "" || secret != "":
		return credentials.Value{}, errors.New("only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set: set both")
	case os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != "":
		return c.from(cc, c.role())
	}
	v, err := c.from(cc, &credentials.FileAWSCredentials{})
	if err == nil || os.Getenv("AWS_PROFILE") != "" {
		return v, err
	}
	if !lentHere() {
		return v, errNoCredentials
	}
	if v, err = c.from(cc, c.role()); err != nil {
		return v, fmt.Errorf("%w (the machine lends none: %w)", errNoCredentials, err)
	}
	return v, nil
}

var errNoCredentials = errors.New("there are none: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or add ?profile=NAME to the URL")

func (c *s3Credentials) from(cc *credentials.CredContext, p credentials.Provider) (credentials.Value, error) {
	v, err := p.RetrieveWithCredContext(cc)
	if err == nil && v.AccessKeyID == "" {
		err = errors.New("they have no access key")
	}
	if err == nil {
		c.found = p
	}
	return v, err
}

// role returns what lends the credentials of a role: to a pod, a container or a machine.
func (c *s3Credentials) role() *credentials.IAM {
	return &credentials.IAM{Client: c.client, Region: c.place.region}
}

func accessKey() (id, secret string) {
	return cmp.Or(os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_ACCESS_KEY")),
		cmp.Or(os.Getenv("AWS_SECRET_ACCESS_KEY"), os.Getenv("AWS_SECRET_KEY"))
}

// lentHere reports whether a service may lend credentials here.
func lentHere() bool {
	return os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != "" || os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI") != "" ||
		!strings.EqualFold(os.Getenv("AWS_EC2_METADATA_DISABLED"), "true")
}

// source says where the credentials come from.
func (p *s3Place) source() string {
	id, secret := accessKey()
	switch {
	case p.anonymous:
		return "none, because the URL says anonymous"
	case p.profile != "":
		return "profile " + p.profile + " of the URL"
	case id != "" || secret != "":
		return "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
	case os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != "":
		return "role " + os.Getenv("AWS_ROLE_ARN")
	case os.Getenv("AWS_PROFILE") != "":
		return "profile " + os.Getenv("AWS_PROFILE")
	}
	return "the default profile, or the role of this machine"
}
