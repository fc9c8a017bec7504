package openai

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// Error is a refusal or a failure as the API has it: a status and {"error": {"message", "type", "param", "code"}}. Its JSON is
// the whole body.
type Error struct {
	Status  int // of HTTP
	Message string
	Type    string
	Param   string // the field that is to blame, "" for none
	Code    string // "" for none
}

// NewError makes an error of the type that goes with its status.
func NewError(status int, param, code, format string, args ...any) *Error {
	e := &Error{Status: status, Message: fmt.Sprintf(format, args...), Param: param, Code: code}
	switch {
	case status == http.StatusUnauthorized:
		e.Type = "authentication_error"
	case status == http.StatusForbidden:
		e.Type = "permission_error"
	case status == http.StatusTooManyRequests:
		e.Type = "rate_limit_error"
	case status >= http.StatusInternalServerError:
		e.Type = "server_error"
	default:
		e.Type = "invalid_request_error"
	}
	return e
}

func (e *Error) Error() string { return e.Message }

// MarshalJSON writes the body of an answer.
func (e *Error) MarshalJSON() ([]byte, error) {
	type object struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}
	return encode(struct {
		Error object `json:"error"`
	}{object{e.Message, e.Type, notEmpty(e.Param), notEmpty(e.Code)}})
}

// notEmpty is nil for "", which JSON has as null.
func notEmpty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// refuse makes the error for a field of a request.
func refuse(param, format string, args ...any) *Error {
	text := fmt.Sprintf(format, args...)
	if param != "" {
		text = param + ": " + text
	}
	return NewError(http.StatusBadRequest, param, "", "%s", text)
}

var _ json.Marshaler = (*Error)(nil)
