'use strict';
module.exports = require('@ruvllm/node');
