"""The 62 classes that FEMNIST and the embedded set share, in their common order: 0-9, A-Z, a-z."""

import string

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
