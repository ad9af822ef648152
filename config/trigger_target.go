package config

import (
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"tidemill.dev"
)

const (
	maxURL        = 2000 // characters; longer URLs may be refused on their way
	maxKubernetes = 63   // characters of a name
	schemeHTTP    = "http"
	schemeHTTPS   = "https"
)

// targets are the keys that say who gets the events. A target has exactly one of them.
var targets = []string{"url", "service", "function"}

func (t *Target) read(v value) {
	given := v.presentFields(append([]field{
		{"url", t.readURL},
		{"service", t.readService},
		{"function", t.readFunction},
	}, t.Credentials.fields()...)...)
	var named []string
	for _, key := range targets {
		if given[key] {
			named = append(named, key)
		}
	}
	switch {
	case len(named) > 1:
		v.problem("has %s; a trigger has one subscriber, keep one", strings.Join(named, " and "))
	case len(named) == 0:
		v.require(v.node, given, "url", "name the subscriber: url for any HTTP server, service for a Knative Service, function for one of Tidemill's own")
	}
	t.Credentials.check(v, given)
	for _, key := range []string{"caFile", "certFile"} {
		if given[key] && strings.HasPrefix(strings.ToLower(t.URL), schemeHTTP+":") {
			v.child(key, v.nodeAt(key)).problem("is for https, and the url is not; write https, or remove the key")
		}
	}
}

func (t *Target) readURL(v value) {
	text, ok := v.text()
	if !ok {
		return
	}
	if err := checkURL(text); err != nil {
		v.problem("%s", err)
		return
	}
	t.URL = text
}

// checkURL repeats nothing of a URL that may contain a user, because that may be a token.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case strings.Contains(text, "@") && (err != nil || u.User != nil):
		return fmt.Errorf("has a user before the host; remove it, and put it into a file: user:password into one that basicFile names, a token into one that bearerFile names")
	case err != nil || u.Host == "" || strings.ContainsAny(text, " \t\n\\"):
		return fmt.Errorf("%s is not a URL; write it like https://crm.example/hooks", show(text))
	case u.Scheme != schemeHTTP && u.Scheme != schemeHTTPS:
		return fmt.Errorf("%s is not http or https, and events are delivered by nothing else", show(text))
	case len(text) > maxURL:
		return fmt.Errorf("%s is longer than %d letters", show(text), maxURL)
	case strings.Contains(text, "#"):
		return fmt.Errorf("%s has a fragment (#), which is not sent to servers; remove it", show(text))
	case !goodPort(u) || u.Hostname() == "":
		return fmt.Errorf("%s has no good host and port; write it like https://crm.example:8443/hooks", show(text))
	}
	return checkQuery(u)
}

func goodPort(u *url.URL) bool {
	if !strings.HasSuffix(u.Host, ":"+u.Port()) {
		return true // there is no port
	}
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && n > 0
}

// checkQuery decodes the escapes, which the check of the whole file does not do.
func checkQuery(u *url.URL) error {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fmt.Errorf("has an invalid query (%s); escape characters other than letters and digits", plain(err.Error()))
	}
	for _, values := range query {
		for _, v := range values {
			if why := secretIn(v); why != "" {
				return fmt.Errorf("has a query that %s", why)
			}
		}
	}
	return nil
}

var (
	// A Service's name becomes a host name and may not begin with a digit.
	kubernetesService   = regexp.MustCompile(`^[a-z]([a-z0-9-]*[a-z0-9])?$`)
	kubernetesNamespace = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
)

func (t *Target) readService(v value) {
	text, ok := v.text()
	if !ok {
		return
	}
	namespace, name, both := strings.Cut(text, "/")
	if !both {
		namespace, name = "", text
	}
	switch {
	case both && (len(namespace) > maxKubernetes || !kubernetesNamespace.MatchString(namespace)):
		v.problem("%s has a namespace that Kubernetes does not allow: a-z, 0-9 and, inside, '-', at most %d letters; write NAME or NAMESPACE/NAME", show(text), maxKubernetes)
	case len(name) > maxKubernetes || !kubernetesService.MatchString(name):
		v.problem("%s is not a name that a Knative Service can have: a letter, then a-z, 0-9 and, inside, '-', at most %d letters; write NAME or NAMESPACE/NAME, and for anything else url", show(text), maxKubernetes)
	default:
		t.Service = text
	}
}

func (t *Target) readFunction(v value) {
	text, ok := v.text()
	if !ok {
		return
	}
	if err := tidemill.CheckLabel(text); err != nil {
		v.problem("%s is not a function's name, which %s", show(text), err)
		return
	}
	t.Function = text
}
