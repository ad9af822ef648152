package web

import (
	"net/url"
	"slices"
	"strings"

	"tidemill.dev/internal/api"
)

// query reads the parameters of an address. Another than those known is a slip,
// and a slip that is passed over shows the wrong things.
func (r *request) query(known []string) (url.Values, *api.Problem) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, invalidRequest("the query of the address cannot be read: " + err.Error())
	}
	for name, all := range values {
		switch {
		case !slices.Contains(known, name):
			return nil, badParameter(name, "there is no such parameter; there are "+strings.Join(known, ", "))
		case len(all) > 1:
			return nil, badParameter(name, "it is given twice; give it once")
		}
	}
	return values, nil
}
