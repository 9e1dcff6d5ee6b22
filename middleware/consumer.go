package middleware

import (
	"errors"
	"fmt"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// maxConsumerBytes leaves room in the inbox index for a key of the largest size.
const maxConsumerBytes = 1024

// checkService validates a service name; the error names the field.
func checkService(field, service string) error {
	switch {
	case service == "":
		return fmt.Errorf("%s is required: without it two services that share a database and the name of a handler "+
			"would take each other's messages for duplicates; set it to the name of the service, such as \"billing\"", field)
	case strings.Contains(service, "/"):
		return fmt.Errorf("%s is %q: it must not contain a slash, which separates it from the handler's name in the inbox",
			field, service)
	case len(service) >= maxConsumerBytes || !text.Storable(service):
		return fmt.Errorf("%s must be UTF-8 without NUL, of less than %d bytes", field, maxConsumerBytes)
	}
	return nil
}

// consumerOf joins the two names. The service contains no slash, so different pairs never give the same result.
func consumerOf(service, name string) (string, error) {
	consumer := service + "/" + name
	switch {
	case name == "":
		return "", &wiringError{text: "the handler has no name: set InboxConfig.Consumer outside of a Router"}
	case len(consumer) > maxConsumerBytes:
		return "", fmt.Errorf("service and handler have %d bytes together, the limit is %d: "+
			"set InboxConfig.Consumer to a shorter name",
			len(consumer), maxConsumerBytes)
	case !text.Storable(name):
		return "", errors.New("the name of the consumer is invalid UTF-8 or contains a NUL: set InboxConfig.Consumer")
	}
	return consumer, nil
}
