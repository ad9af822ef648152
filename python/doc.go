// Package python has the Python package tidemill, as a wheel that pip installs.
//
// The package is not on PyPI. The binary carries its source, so that tidemill init can put
// it into a trainer's virtual environment.
package python
