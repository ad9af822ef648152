// Package dashboard renders the dashboard: pages for people, made on the server from the answers of
// the HTTP API. A page calls the API in-process with the credentials of its own request. So it shows
// exactly the API's answers to that caller, and the package decides about no rights.
package dashboard
