'use strict';
module.exports = require('./lib/native.cjs').program;
