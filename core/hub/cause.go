package hub

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"syscall"
)

// networkError is a connection that failed.
type networkError struct {
	where string // the URL without query, and how far it was
	host  string
	err   error
}

func (e *networkError) Error() string { return e.where + ": " + inWords(e.err) }
func (e *networkError) Unwrap() error { return e.err }

// plain says what went wrong without the URL's query, which net/http repeats in its errors.
func plain(u *url.URL, err error) error {
	if e := (*url.Error)(nil); errors.As(err, &e) {
		err = e.Err
	}
	return &networkError{bare(u), u.Host, err}
}

// broken is a body that ended after bytes bytes of a file of size bytes.
func broken(u *url.URL, bytes, size int64, err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return &networkError{fmt.Sprintf("%s: after %d of %d bytes", bare(u), bytes, size), u.Host, err}
}

// The numbers Windows has for a connection that is refused, reset or aborted.
const (
	wsaAborted = syscall.Errno(10053)
	wsaReset   = syscall.Errno(10054)
	wsaRefused = syscall.Errno(10061)
)

// inWords says why a connection failed as one says it to a person.
func inWords(err error) string {
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	var op *net.OpError
	var timeout net.Error
	switch {
	case is(context.Canceled, errStalled):
		return err.Error()
	case errors.As(err, &dns) && dns.IsNotFound:
		return "there is no host of the name " + clean(dns.Name)
	case errors.As(err, &dns):
		return "the name " + clean(dns.Name) + " cannot be looked up: is there a network?"
	case errors.As(err, &certificate):
		return "its certificate is not trusted: " + clean(certificate.Err.Error())
	case is(syscall.ECONNREFUSED, wsaRefused):
		return "connection refused"
	case is(syscall.ENETUNREACH, syscall.EHOSTUNREACH):
		return "the network does not reach it"
	case is(io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, wsaReset, wsaAborted):
		return "the connection broke"
	case is(io.EOF):
		return "it closed the connection without an answer"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "no answer in time"
	case errors.As(err, &op):
		return clean(op.Err.Error())
	}
	return clean(err.Error())
}

// unreachable reports whether there was no connection at all.
func unreachable(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect")
}

// untrusted reports whether a server's certificate was refused, which trying again does not change.
func untrusted(err error) bool {
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &certificate)
}

// cause is what to tell of an error that is followed by another attempt: who, and why.
func cause(err error) string {
	var network *networkError
	var status *statusError
	switch {
	case errors.As(err, &network):
		return network.host + ": " + inWords(network.err)
	case errors.As(err, &status):
		if u, e := url.Parse(status.where); e == nil {
			return u.Host + ": " + status.answer()
		}
	}
	return clean(err.Error())
}
